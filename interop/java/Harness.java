import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The unmodified RocketMQ Java client as a process that Python can steer: requests as JSON lines on stdin,
 * replies and deliveries as JSON lines on stdout. The same source compiles against 4.9.x and 5.x; types that
 * moved between the two are only ever held in {@code var}.
 *
 * <p>The lines are described in interop/harness.py and interop/README.md. The process ends when stdin does.
 */
public final class Harness {
    private static final PrintStream OUT = System.out;

    private final String nameServer;
    private final ExecutorService pool = Executors.newCachedThreadPool();
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, PushMember> members = new ConcurrentHashMap<>();
    private final Map<String, DefaultLitePullConsumer> pollers = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPullConsumer> pullers = new ConcurrentHashMap<>();
    private final Admin admin;

    private Harness(String nameServer) {
        this.nameServer = nameServer;
        this.admin = new Admin(nameServer);
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // libraries that print must not disturb the lines
        Harness harness = new Harness(args[0]);
        emit(new JSONObject().fluentPut("event", "ready"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject request = JSON.parseObject(line);
            harness.pool.execute(() -> harness.answer(request));
        }
        Runtime.getRuntime().halt(0);
    }

    static void emit(JSONObject line) {
        byte[] bytes = (line.toJSONString() + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (OUT) {
            OUT.write(bytes, 0, bytes.length);
            OUT.flush();
        }
    }

    private void answer(JSONObject request) {
        JSONObject reply = new JSONObject().fluentPut("id", request.getLongValue("id"));
        try {
            reply.put("ok", perform(request.getString("do"), request));
        } catch (Throwable failure) {
            reply.put("error", failure.getClass().getSimpleName() + ": " + failure.getMessage());
        }
        emit(reply);
    }

    private Object perform(String what, JSONObject request) throws Exception {
        String name = request.getString("name");
        switch (what) {
            case "producer.start": return startProducer(name, request);
            case "producer.stop": producers.remove(name).shutdown(); return true;
            case "send": return send(producers.get(name), request);
            case "send_batch": return sendBatch(producers.get(name), request);
            case "consumer.start": return startMember(name, request);
            case "consumer.stop": members.remove(name).stop(); return true;
            case "consumer.release": members.get(name).release(); return true;
            case "poller.start": return startPoller(name, request);
            case "poller.poll": return found(pollers.get(name).poll(request.getLongValue("timeout_ms")));
            case "poller.commit": pollers.get(name).commitSync(); return true;
            case "poller.seek": return seek(pollers.get(name), request);
            case "poller.stop": pollers.remove(name).shutdown(); return true;
            case "puller.start": return startPuller(name, request);
            case "puller.pull": return pull(pullers.get(name), request);
            case "puller.stop": pullers.remove(name).shutdown(); return true;
            default: return admin.perform(what, request);
        }
    }

    private Object startProducer(String name, JSONObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(request.getString("group"));
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(name);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        producers.put(name, producer);
        return true;
    }

    private static Object send(DefaultMQProducer producer, JSONObject request) throws Exception {
        Message message = message(request, body(request));
        String key = request.getString("key");
        byte[] body = message.getBody(); // the client may replace the message's body by a compressed one
        SendResult result = key == null
            ? producer.send(message)
            : producer.send(message, new SelectMessageQueueByHash(), key);
        return receipt(result, body);
    }

    private static Object sendBatch(DefaultMQProducer producer, JSONObject request) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (Object body : request.getJSONArray("bodies")) {
            batch.add(message(request, ((String) body).getBytes(StandardCharsets.UTF_8)));
        }
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(request.getString("topic"));
        MessageQueue queue = new SelectMessageQueueByHash().select(queues, null, request.getString("key"));
        return receipt(producer.send(batch, queue), batch.get(0).getBody());
    }

    private static byte[] body(JSONObject request) {
        int noise = request.getIntValue("noise");
        if (noise > 0) {
            byte[] bytes = new byte[noise];
            new Random(noise).nextBytes(bytes);
            return bytes;
        }
        return request.getString("text").repeat(request.getIntValue("repeat")).getBytes(StandardCharsets.UTF_8);
    }

    private static Message message(JSONObject request, byte[] body) {
        Message message = new Message(request.getString("topic"), request.getString("tags"),
            request.getString("keys"), body);
        if (request.getIntValue("delay_level") > 0) {
            message.setDelayTimeLevel(request.getIntValue("delay_level"));
        }
        JSONObject properties = request.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((key, value) -> message.putUserProperty(key, (String) value));
        }
        return message;
    }

    private static JSONObject receipt(SendResult result, byte[] body) {
        return new JSONObject()
            .fluentPut("status", result.getSendStatus().name())
            .fluentPut("queue", result.getMessageQueue().getQueueId())
            .fluentPut("offset", result.getQueueOffset())
            .fluentPut("id", result.getMsgId())
            .fluentPut("offset_id", result.getOffsetMsgId())
            .fluentPut("size", body.length)
            .fluentPut("sha1", Described.sha1(body));
    }

    private Object startMember(String name, JSONObject request) throws Exception {
        PushMember member = new PushMember(nameServer, name, request);
        members.put(name, member);
        return member.start();
    }

    private Object startPoller(String name, JSONObject request) throws Exception {
        DefaultLitePullConsumer poller = new DefaultLitePullConsumer(request.getString("group"));
        poller.setNamesrvAddr(nameServer);
        poller.setInstanceName(name);
        poller.setAutoCommit(request.getBooleanValue("auto_commit"));
        poller.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        poller.subscribe(request.getString("topic"), request.getString("tags"));
        poller.start();
        pollers.put(name, poller);
        return true;
    }

    private static Object seek(DefaultLitePullConsumer poller, JSONObject request) throws Exception {
        poller.seek(queue(poller.fetchMessageQueues(request.getString("topic")), request),
            request.getLongValue("offset"));
        return true;
    }

    private static MessageQueue queue(Collection<MessageQueue> queues, JSONObject request) {
        return queues.stream().filter(queue -> queue.getQueueId() == request.getIntValue("queue"))
            .findFirst().orElseThrow();
    }

    private Object startPuller(String name, JSONObject request) throws Exception {
        DefaultMQPullConsumer puller = new DefaultMQPullConsumer(request.getString("group"));
        puller.setNamesrvAddr(nameServer);
        puller.setInstanceName(name);
        puller.start();
        pullers.put(name, puller);
        return true;
    }

    private static Object pull(DefaultMQPullConsumer puller, JSONObject request) throws Exception {
        MessageQueue queue = queue(puller.fetchSubscribeMessageQueues(request.getString("topic")), request);
        var result = puller.pull(queue, request.getString("tags"), request.getLongValue("offset"),
            request.getIntValue("most"));
        return new JSONObject()
            .fluentPut("status", result.getPullStatus().name())
            .fluentPut("next", result.getNextBeginOffset())
            .fluentPut("min", result.getMinOffset())
            .fluentPut("max", result.getMaxOffset())
            .fluentPut("messages", found(result.getMsgFoundList()));
    }

    static JSONArray found(List<MessageExt> messages) {
        JSONArray all = new JSONArray();
        if (messages != null) {
            messages.forEach(message -> all.add(Described.message(message)));
        }
        return all;
    }
}

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * One job for the Java client: {@code Job ADDRESS JOB}. The job and the lines that it prints are described in
 * ../README.md.
 */
public final class Job {
    private static final PrintStream OUT = System.out;
    /** RocketMQ's 3 s are too short for a JVM that starts on a busy machine. */
    private static final int TIMEOUT_MILLIS = 20_000;

    private final String address;
    private final JSONObject job;

    private Job(String address, JSONObject job) {
        this.address = address;
        this.job = job;
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // libraries that print must not disturb the lines
        Job todo = new Job(args[0], JSON.parseObject(args[1]));
        switch (todo.job.getString("do")) {
            case "send": todo.send(); break;
            case "consume": todo.consume(todo.handler()); break;
            case "request": todo.request(); break;
            case "reply": todo.reply(); break;
            default: say("unsupported", todo.job.getString("do"));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void say(String what, Object value) {
        byte[] line = (new JSONObject().fluentPut(what, value).toJSONString() + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (OUT) {
            OUT.write(line, 0, line.length);
            OUT.flush();
        }
    }

    private DefaultMQProducer producer(String group, boolean traced) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group, traced, null);
        producer.setNamesrvAddr(address);
        producer.setMqClientApiTimeout(TIMEOUT_MILLIS);
        producer.setSendMsgTimeout(TIMEOUT_MILLIS);
        producer.setInstanceName("p" + ProcessHandle.current().pid());
        producer.start();
        return producer;
    }

    private void send() throws Exception {
        DefaultMQProducer producer = producer("java-senders", job.getBooleanValue("trace"));
        for (Object item : job.getJSONArray("messages")) {
            JSONObject each = (JSONObject) item;
            String body = each.getString("body");
            Message message = new Message(
                job.getString("topic"), each.getString("tag"), body, body.getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("from", "java");
            message.setDelayTimeLevel(each.getIntValue("delay"));
            SendResult sent = producer.send(message, new SelectMessageQueueByHash(), each.getString("key"));
            say("sent", new JSONObject().fluentPut("body", body).fluentPut("queue", sent.getMessageQueue().getQueueId())
                .fluentPut("offset", sent.getQueueOffset()).fluentPut("id", sent.getOffsetMsgId()));
        }
        producer.shutdown(); // sends what it has traced
    }

    private interface Handler {
        boolean handle(MessageExt message) throws Exception;
    }

    private Handler handler() {
        Set<String> failing = ConcurrentHashMap.newKeySet();
        JSONArray fail = job.getJSONArray("fail");
        if (fail != null) {
            failing.addAll(fail.toJavaList(String.class));
        }
        return message -> {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            say("got", new JSONObject().fluentPut("body", body).fluentPut("queue", message.getQueueId())
                .fluentPut("offset", message.getQueueOffset()).fluentPut("attempts", message.getReconsumeTimes()));
            return !failing.remove(body);
        };
    }

    private void consume(Handler handler) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(job.getString("group"));
        consumer.setNamesrvAddr(address);
        consumer.setMqClientApiTimeout(TIMEOUT_MILLIS);
        consumer.setInstanceName("c" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(job.getBooleanValue("from_last")
            ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        if (job.getBooleanValue("broadcast")) {
            var model = consumer.getMessageModel();
            for (var each : model.getDeclaringClass().getEnumConstants()) {
                if (each.name().equals("BROADCASTING")) {
                    consumer.setMessageModel(each);
                }
            }
        }
        if (job.getBooleanValue("client_rebalance_off")) { // 5.x only
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        consumer.subscribe(job.getString("topic"), job.getString("tags") == null ? "*" : job.getString("tags"));
        if (job.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> succeeds(handler, batch)
                ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> succeeds(handler, batch)
                ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        say("ready", true);
        while (System.in.read() >= 0) {
            continue;
        }
        consumer.shutdown();
    }

    private static boolean succeeds(Handler handler, List<MessageExt> batch) {
        boolean all = true;
        for (MessageExt message : batch) {
            try {
                all &= handler.handle(message);
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
        }
        return all;
    }

    private void request() throws Exception {
        DefaultMQProducer producer = producer("java-askers", false);
        byte[] body = job.getString("body").getBytes(StandardCharsets.UTF_8);
        CompletableFuture<Message> replied = new CompletableFuture<>();
        producer.request(new Message(job.getString("topic"), body), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) { // 5.3.3 calls this a first time without a message when the request is stored
                    replied.complete(message);
                }
            }

            @Override
            public void onException(Throwable failure) {
                replied.completeExceptionally(failure);
            }
        }, 20_000);
        say("replied", new String(replied.get(30, TimeUnit.SECONDS).getBody(), StandardCharsets.UTF_8));
        producer.shutdown();
    }

    private void reply() throws Exception {
        DefaultMQProducer producer = producer("java-repliers", false);
        consume(message -> {
            if (message.getProperty(MessageConst.PROPERTY_MESSAGE_REPLY_TO_CLIENT) == null) {
                return true;
            }
            String body = "re: " + new String(message.getBody(), StandardCharsets.UTF_8);
            producer.send(MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8)));
            return true;
        });
    }
}

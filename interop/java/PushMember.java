import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * One push consumer whose listener follows rules: the first rule whose text is in the body, and which has not
 * been used up for that message, decides. Every turn is reported when it starts and when it ends.
 */
final class PushMember {
    private static final AtomicLong TURNS = new AtomicLong();

    private final String name;
    private final JSONObject options;
    private final JSONArray rules;
    private final DefaultMQPushConsumer consumer;
    private final Map<String, AtomicInteger> uses = new ConcurrentHashMap<>();
    private final CountDownLatch released = new CountDownLatch(1);

    PushMember(String nameServer, String name, JSONObject options) throws Exception {
        this.name = name;
        this.options = options;
        this.rules = options.getJSONArray("rules");
        this.consumer = new DefaultMQPushConsumer(options.getString("group"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(options.getBooleanValue("from_last")
            ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(options.getIntValue("threads"));
        consumer.setConsumeThreadMax(options.getIntValue("threads"));
        consumer.setConsumeMessageBatchMaxSize(options.getIntValue("batch"));
        consumer.setMaxReconsumeTimes(options.getIntValue("max_attempts"));
        consumer.setSuspendCurrentQueueTimeMillis(options.getLongValue("suspend_ms"));
        if (options.getBooleanValue("broadcast")) {
            broadcast();
        }
        consumer.subscribe(options.getString("topic"), options.getString("tags"));
        if (options.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) this::orderly);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) this::concurrent);
        }
    }

    String start() throws Exception {
        consumer.start();
        return consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
    }

    void stop() {
        released.countDown();
        consumer.shutdown();
    }

    void release() {
        released.countDown();
    }

    /** MessageModel lives in different packages in 4.9 and 5, so it is reached without being named. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private void broadcast() throws Exception {
        Class model = consumer.getMessageModel().getClass();
        DefaultMQPushConsumer.class.getMethod("setMessageModel", model)
            .invoke(consumer, Enum.valueOf(model, "BROADCASTING"));
    }

    private ConsumeOrderlyStatus orderly(List<MessageExt> messages, ConsumeOrderlyContext context) {
        context.setAutoCommit(options.getBooleanValue("auto_commit"));
        switch (turn(messages)) {
            case "suspend": return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            case "commit": return ConsumeOrderlyStatus.COMMIT;
            case "rollback": return ConsumeOrderlyStatus.ROLLBACK;
            case "nothing": return null;
            default: return ConsumeOrderlyStatus.SUCCESS;
        }
    }

    private ConsumeConcurrentlyStatus concurrent(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
        JSONObject rule = rule(messages.get(0));
        if (rule != null && rule.getInteger("delay_level") != null) {
            context.setDelayLevelWhenNextConsume(rule.getIntValue("delay_level"));
        }
        return turn(messages).equals("later")
            ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private String turn(List<MessageExt> messages) {
        JSONObject rule = rule(messages.get(0));
        String verdict = rule == null ? "success" : rule.getString("verdict");
        if (rule != null) {
            uses.computeIfAbsent(use(rule, messages.get(0)), any -> new AtomicInteger()).incrementAndGet();
        }
        long number = TURNS.incrementAndGet();
        report(new JSONObject().fluentPut("event", "turn").fluentPut("turn", number)
            .fluentPut("messages", Harness.found(messages)).fluentPut("thread", Thread.currentThread().getName()));
        try {
            pass(rule);
        } catch (InterruptedException stopping) {
            Thread.currentThread().interrupt();
            verdict = "interrupted";
        }
        report(new JSONObject().fluentPut("event", "end").fluentPut("turn", number)
            .fluentPut("verdict", verdict));
        if (verdict.equals("throw") || verdict.equals("interrupted")) {
            throw new IllegalStateException("as requested: " + verdict);
        }
        return verdict;
    }

    /** Spends the time a handler would; a rule that holds waits until it is released. */
    private void pass(JSONObject rule) throws InterruptedException {
        if (rule != null && rule.getBooleanValue("hold")) {
            released.await();
        }
        long sleep = options.getLongValue("sleep_ms");
        if (sleep > 0) {
            Thread.sleep(sleep);
        }
    }

    private JSONObject rule(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        for (Object each : rules) {
            JSONObject rule = (JSONObject) each;
            AtomicInteger used = uses.get(use(rule, message));
            int times = rule.getIntValue("times");
            if (body.contains(rule.getString("match")) && (times < 0 || used == null || used.get() < times)) {
                return rule;
            }
        }
        return null;
    }

    private static String use(JSONObject rule, MessageExt message) {
        return rule.getString("match") + rule.getString("verdict") + "/" + message.getKeys() + "/"
            + new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private void report(JSONObject event) {
        long micros = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
        Harness.emit(event.fluentPut("name", name).fluentPut("at_us", micros));
    }
}

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Apache RocketMQ's Java client. Its asynchronous send keeps no order, so "pipelined" is 64 threads, each of which sends
 * the messages of its keys one after the other; batches go to each queue in a thread of its own.
 */
public final class RocketmqClient implements Bench.Client {
    private static final int THREADS = 64;
    private static final int BATCH = 1_000;
    private static final int TIMEOUT_MILLIS = 20_000;

    private final Bench job;
    private final List<ExecutorService> threads = new ArrayList<>();
    private final List<Future<?>> offered = new ArrayList<>();
    private DefaultMQProducer producer;

    private RocketmqClient(Bench job) {
        this.job = job;
    }

    public static void main(String[] arguments) throws Exception {
        Bench job = new Bench(arguments);
        job.run(new RocketmqClient(job));
    }

    private DefaultMQProducer producer() throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("bench-senders");
            producer.setNamesrvAddr(job.text("address"));
            producer.setSendMsgTimeout(TIMEOUT_MILLIS);
            producer.start();
            for (int i = 0; i < THREADS; i++) {
                threads.add(Executors.newSingleThreadExecutor());
            }
        }
        return producer;
    }

    private Message message(Bench.Item item) {
        return new Message(job.text("topic"), "", item.key(), item.value());
    }

    private static void stored(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("not stored: " + result);
        }
    }

    @Override
    public void send(Bench.Item item) throws Exception {
        stored(producer().send(message(item), new SelectMessageQueueByHash(), item.key()));
    }

    @Override
    public void pipelined(List<Bench.Item> items) throws Exception {
        offer(items);
        settle();
    }

    @Override
    public void offer(List<Bench.Item> items) throws Exception {
        producer();
        for (Bench.Item each : items) {
            int thread = Math.floorMod(each.key().hashCode(), THREADS);
            offered.add(threads.get(thread).submit(() -> {
                send(each);
                return null;
            }));
        }
    }

    @Override
    public void settle() throws Exception {
        for (Future<?> each : offered) {
            each.get();
        }
        offered.clear();
    }

    @Override
    public void batch(List<Bench.Item> items) throws Exception {
        List<MessageQueue> queues = producer().fetchPublishMessageQueues(job.text("topic"));
        List<List<Message>> byQueue = new ArrayList<>();
        queues.forEach(queue -> byQueue.add(new ArrayList<>()));
        for (Bench.Item each : items) {
            MessageQueue queue = new SelectMessageQueueByHash().select(queues, null, each.key());
            byQueue.get(queues.indexOf(queue)).add(message(each));
        }
        for (int i = 0; i < queues.size(); i++) {
            MessageQueue queue = queues.get(i);
            List<Message> all = byQueue.get(i);
            offered.add(threads.get(i).submit(() -> {
                for (int first = 0; first < all.size(); first += BATCH) {
                    stored(producer.send(all.subList(first, Math.min(all.size(), first + BATCH)), queue));
                }
                return null;
            }));
        }
        settle();
    }

    @Override
    public void consume(Bench.Handle handle) throws Exception {
        CountDownLatch finished = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(job.text("group") + "-" + job.text("topic"));
        consumer.setNamesrvAddr(job.text("address"));
        consumer.setInstanceName("bench-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(job.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt each : messages) {
                try {
                    if (handle.handle(each.getKeys(), Bench.decode(each.getBody()), each.getQueueOffset())) {
                        finished.countDown();
                    }
                } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        finished.await();
    }
}

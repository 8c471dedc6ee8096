import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Confluent's Parallel Consumer: order by key, so many keys of a partition at once. */
public final class ParallelClient implements Bench.Client {
    private final Bench job;

    private ParallelClient(Bench job) {
        this.job = job;
    }

    public static void main(String[] arguments) throws Exception {
        Bench job = new Bench(arguments);
        job.run(new ParallelClient(job));
    }

    @Override
    public void consume(Bench.Handle handle) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", job.text("address"));
        settings.put("group.id", job.text("group"));
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new ByteArrayDeserializer());
        var options = ParallelConsumerOptions.<String, byte[]>builder()
            .ordering(ProcessingOrder.KEY)
            .maxConcurrency(Math.max(1, job.number("lanes", 32)))
            .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
            .consumer(consumer)
            .build();
        CountDownLatch finished = new CountDownLatch(1);
        var processor = ParallelStreamProcessor.createEosStreamProcessor(options);
        processor.subscribe(List.of(job.text("topic")));
        processor.poll(context -> {
            var message = context.getSingleConsumerRecord();
            try {
                if (handle.handle(message.key(), Bench.decode(message.value()), message.offset())) {
                    finished.countDown();
                }
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
        });
        finished.await();
    }
}

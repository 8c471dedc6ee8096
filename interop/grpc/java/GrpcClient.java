import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

/** RocketMQ's official Java client 5.x as a program, with the roles of client.py. */
public class GrpcClient {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Pattern FIELD = Pattern.compile("\"(\\w+)\": ?\"([^\"]*)\"");

    static synchronized void say(Object... what) {
        StringBuilder line = new StringBuilder("{");
        for (int at = 0; at < what.length; at += 2) {
            Object value = what[at + 1];
            line.append(at == 0 ? "" : ", ").append('"').append(what[at]).append("\": ");
            if (value == null || value instanceof Number || value instanceof Boolean) {
                line.append(value);
            } else {
                String text = value.toString().replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ");
                line.append('"').append(text).append('"');
            }
        }
        System.out.println(line.append('}'));
        System.out.flush();
    }

    static double now() {
        return System.currentTimeMillis() / 1000.0;
    }

    static String body(MessageView message) {
        ByteBuffer bytes = message.getBody();
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        return new String(copy, StandardCharsets.UTF_8);
    }

    static void got(MessageView message, String body) {
        say("got", body, "key", message.getMessageGroup().orElse(null), "attempt", message.getDeliveryAttempt(),
            "id", message.getMessageId().toString(), "tag", message.getTag().orElse(null), "at", now());
    }

    static ClientConfiguration configuration(Map<String, String> options) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(options.get("server"))
            .enableSsl(options.containsKey("tls"));
        if (options.containsKey("user")) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(options.get("user"), options.get("secret")));
        }
        return builder.build();
    }

    static void send(Map<String, String> options) throws Exception {
        String topic = options.get("topic");
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration(options))
            .setTopics(topic).build();
        say("ready", true);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Map<String, String> wanted = new HashMap<>();
            for (Matcher field = FIELD.matcher(line); field.find(); ) {
                wanted.put(field.group(1), field.group(2));
            }
            MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(topic)
                .setBody(wanted.get("body").getBytes(StandardCharsets.UTF_8));
            if (wanted.containsKey("key")) {
                builder.setMessageGroup(wanted.get("key"));
            }
            if (wanted.containsKey("tag")) {
                builder.setTag(wanted.get("tag"));
            }
            Message message = builder.build();
            try {
                SendReceipt receipt = producer.send(message);
                say("sent", wanted.get("body"), "id", receipt.getMessageId().toString());
            } catch (Exception error) {
                say("failed", wanted.get("body"), "why", error.toString());
            }
        }
        producer.close();
    }

    static void push(Map<String, String> options) throws Exception {
        Set<String> failing = new HashSet<>(List.of(options.getOrDefault("fail", "").split(",")));
        Set<String> failed = ConcurrentHashMap.newKeySet();
        boolean always = "always".equals(options.get("fails"));
        long pause = (long) (Double.parseDouble(options.getOrDefault("seconds", "0")) * 1000);
        FilterExpression tags = new FilterExpression(options.getOrDefault("tags", "*"));
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration(options))
            .setConsumerGroup(options.get("group"))
            .setSubscriptionExpressions(Collections.singletonMap(options.get("topic"), tags))
            .setMessageListener(message -> {
                String body = body(message);
                got(message, body);
                try {
                    Thread.sleep(pause);
                } catch (InterruptedException error) {
                    return ConsumeResult.FAILURE;
                }
                if (failing.contains(body) && (always || failed.add(body))) {
                    return ConsumeResult.FAILURE;
                }
                say("done", body, "at", now());
                return ConsumeResult.SUCCESS;
            }).build();
        say("ready", true);
        System.in.readAllBytes();
        consumer.close();
    }

    static void simple(Map<String, String> options) throws Exception {
        FilterExpression tags = new FilterExpression(options.getOrDefault("tags", "*"));
        Set<String> ignored = new HashSet<>(List.of(options.getOrDefault("ignore", "").split(",")));
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration(options))
            .setConsumerGroup(options.get("group"))
            .setAwaitDuration(Duration.ofSeconds(Long.parseLong(options.getOrDefault("wait", "3"))))
            .setSubscriptionExpressions(Collections.singletonMap(options.get("topic"), tags)).build();
        say("ready", true);
        boolean[] stopping = {false};
        Thread reader = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (Exception error) {
                say("why", error.toString());
            }
            stopping[0] = true;
        });
        reader.setDaemon(true);
        reader.start();
        int batch = Integer.parseInt(options.getOrDefault("batch", "3"));
        Duration invisible = Duration.ofSeconds(Long.parseLong(options.getOrDefault("invisible", "10")));
        while (!stopping[0]) {
            for (MessageView message : new ArrayList<>(consumer.receive(batch, invisible))) {
                String body = body(message);
                got(message, body);
                if (ignored.remove(body)) {
                    continue;
                }
                try {
                    consumer.ack(message);
                    say("done", body, "at", now());
                } catch (Exception error) {
                    say("refused", body, "why", error.toString());
                }
            }
        }
        consumer.close();
    }

    public static void main(String[] words) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String word : words) {
            int at = word.indexOf('=');
            options.put(at < 0 ? word : word.substring(0, at), at < 0 ? "" : word.substring(at + 1));
        }
        switch (words[0]) {
            case "send" -> send(options);
            case "push" -> push(options);
            default -> simple(options);
        }
        say("ended", true);
        System.exit(0);
    }
}

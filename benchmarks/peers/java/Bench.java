import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.management.OperatingSystemMXBean;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * What a client does, whatever its contender: the same roles as clients/roles.py, with the same words on the command line
 * and the same lines on the output.
 */
public final class Bench {
    /** A message to send. */
    public record Item(String key, byte[] value) {}

    /** Called for each message; true when everything has been read. */
    public interface Handle {
        boolean handle(String key, Map<?, ?> event, long position) throws Exception;
    }

    /** What a contender's client offers; what it cannot do throws. */
    public interface Client {
        default void send(Item item) throws Exception {
            throw new UnsupportedOperationException("send");
        }

        default void pipelined(List<Item> items) throws Exception {
            throw new UnsupportedOperationException("pipelined");
        }

        default void batch(List<Item> items) throws Exception {
            throw new UnsupportedOperationException("batch");
        }

        default void offer(List<Item> items) throws Exception {
            throw new UnsupportedOperationException("offer");
        }

        default void settle() throws Exception {
        }

        /** Calls the handler, in the order of each key, until it returns true. */
        void consume(Handle handle) throws Exception;
    }

    private interface Sending {
        void send(List<Item> items) throws Exception;
    }

    private static final int WARM_UP_ONE = 100;
    private static final int WARM_UP_MANY = 2_000;
    private static final int LEAST = 200;
    private static final int MOST = 100_000;
    private static final double TICKS = 100.0; // of /proc, on every Linux
    private static final ObjectMapper JSON = new ObjectMapper();
    private static PrintStream out;

    private final Map<String, String> words = new HashMap<>();
    private final Map<String, Integer> next = new ConcurrentHashMap<>();
    private final AtomicInteger faults = new AtomicInteger();
    private final AtomicInteger repeats = new AtomicInteger();
    private int made;

    public Bench(String[] arguments) {
        out = System.out;
        System.setOut(System.err); // libraries that print must not disturb the lines
        for (String word : arguments) {
            words.put(word.substring(0, word.indexOf('=')), word.substring(word.indexOf('=') + 1));
        }
    }

    public String text(String name) {
        return words.get(name);
    }

    public int number(String name, int otherwise) {
        return Integer.parseInt(words.getOrDefault(name, String.valueOf(otherwise)));
    }

    /** The decoded event. */
    public static Map<?, ?> decode(byte[] body) throws Exception {
        return JSON.readValue(body, Map.class);
    }

    public void run(Client client) throws Exception {
        switch (text("do")) {
            case "fill": fill(client); break;
            case "send": send(client); break;
            case "read": read(client); break;
            case "pace": pace(client); break;
            case "listen": listen(client); break;
            case "member": member(client); break;
            default: throw new IllegalArgumentException(text("do"));
        }
        out.flush();
        Runtime.getRuntime().halt(0);
    }

    // messages

    private static Item item(String key, int number, int size, long at) {
        String head = "{\"key\":\"" + key + "\",\"n\":" + number + ",\"at\":" + at + ",\"pad\":\"";
        String pad = "x".repeat(Math.max(0, size - head.length() - 2));
        return new Item(key, (head + pad + "\"}").getBytes(StandardCharsets.UTF_8));
    }

    private List<Item> items(int count) {
        int keys = number("keys", 1);
        String prefix = words.getOrDefault("prefix", "key");
        List<Item> items = new ArrayList<>(count);
        for (int i = 0; i < count; i++, made++) {
            items.add(item(prefix + "-" + made % keys, made / keys, number("size", 100), 0));
        }
        return items;
    }

    /** Whether the message is the next of its key. */
    private boolean see(String key, int number) {
        int expected = next.getOrDefault(key, 0);
        if (number == expected) {
            next.put(key, expected + 1);
            return true;
        }
        if (number < expected) {
            repeats.incrementAndGet();
        } else {
            faults.incrementAndGet();
            next.put(key, number + 1);
        }
        return false;
    }

    private String verdict(int expected) {
        int distinct = next.values().stream().mapToInt(Integer::intValue).sum();
        if (faults.get() > 0) {
            return faults + " messages out of order or lost";
        }
        return distinct == expected ? "pass" : distinct + " of " + expected + " messages";
    }

    // roles

    private void fill(Client client) throws Exception {
        int count = number("count", 0);
        client.batch(items(count));
        say("{\"sent\":" + count + "}");
    }

    private void send(Client client) throws Exception {
        for (String way : text("ways").split(",")) {
            Sending sending = switch (way) {
                case "one" -> items -> {
                    for (Item each : items) {
                        client.send(each);
                    }
                };
                case "pipelined" -> client::pipelined;
                case "batch" -> client::batch;
                default -> throw new IllegalArgumentException(way);
            };
            measure(way, sending);
        }
        say("{\"sent\":" + made + "}");
    }

    private void measure(String way, Sending sending) throws Exception {
        int count = way.equals("one") ? WARM_UP_ONE : WARM_UP_MANY;
        double target = number("ms", 1000) / 1000.0;
        for (double seconds : new double[] {target / 4, target}) {
            List<Item> items = items(count);
            long began = System.nanoTime();
            sending.send(items);
            double rate = count / ((System.nanoTime() - began) / 1e9);
            count = Math.min(MOST, Math.max(LEAST, (int) (rate * seconds)));
        }
        List<Item> items = items(count);
        Stopwatch watch = new Stopwatch();
        sending.send(items);
        say("{\"way\":\"" + way + "\",\"count\":" + count + "," + watch.stop() + "}");
    }

    private void read(Client client) throws Exception {
        int expect = number("expect", 0);
        int pause = number("handler_ms", 0);
        int warm = number("warm", 1);
        AtomicInteger turns = new AtomicInteger();
        AtomicInteger last = new AtomicInteger(expect);
        Map<String, Long> positions = new ConcurrentHashMap<>();
        Stopwatch[] watch = new Stopwatch[1];
        String[] ended = new String[1];
        CountDownLatch over = new CountDownLatch(1);
        client.consume((key, event, position) -> {
            if (pause > 0) {
                Thread.sleep(pause);
            }
            if (!see(key, ((Number) event.get("n")).intValue())) {
                last.incrementAndGet(); // a repeat does not count towards the end
            }
            positions.put(key, position);
            int turn = turns.incrementAndGet();
            if (turn == warm) {
                watch[0] = new Stopwatch();
            }
            if (turn == last.get()) {
                ended[0] = watch[0].stop();
                over.countDown();
            }
            return turn >= last.get();
        });
        over.await();
        say("{\"count\":" + (expect - warm) + ",\"repeats\":" + repeats + ",\"verdict\":\"" + verdict(expect) + "\"," + ended[0] + "}");
    }

    private void pace(Client client) throws Exception {
        int count = number("count", 0);
        double step = 1e9 / number("rate", 1);
        Path stop = text("stop") == null ? null : Path.of(text("stop"));
        client.offer(List.of());
        Stopwatch watch = new Stopwatch();
        long began = System.nanoTime();
        int sent = 0;
        while (sent < count && (stop == null || !Files.exists(stop))) {
            int until = Math.min(count, (int) ((System.nanoTime() - began) / step) + 1);
            List<Item> due = new ArrayList<>();
            for (; sent < until; sent++) {
                due.add(item("key-" + sent % number("keys", 1), sent / number("keys", 1), number("size", 100),
                    began + (long) (sent * step)));
            }
            client.offer(due);
            long wait = (long) (began + sent * step) - System.nanoTime();
            if (wait > 0) {
                Thread.sleep(wait / 1_000_000, (int) (wait % 1_000_000));
            }
        }
        client.settle();
        say("{\"count\":" + sent + "," + watch.stop() + "}");
    }

    private void listen(Client client) throws Exception {
        int expect = number("expect", 0);
        int skip = number("skip", 0);
        AtomicInteger turns = new AtomicInteger();
        AtomicInteger last = new AtomicInteger(expect);
        long[] delays = new long[expect];
        Stopwatch[] watch = new Stopwatch[1];
        CountDownLatch over = new CountDownLatch(1);
        client.consume((key, event, position) -> {
            if (key.startsWith("probe")) {
                watch[0] = new Stopwatch();
                say("{\"ready\":true}");
                return false;
            }
            long delay = System.nanoTime() - ((Number) event.get("at")).longValue();
            if (!see(key, ((Number) event.get("n")).intValue())) {
                last.incrementAndGet();
            }
            int turn = turns.getAndIncrement();
            if (turn < expect) {
                delays[turn] = delay / 1000;
            }
            if (turn + 1 == last.get()) {
                over.countDown();
            }
            return turn + 1 >= last.get();
        });
        over.await();
        String ended = watch[0].stop();
        String late = Arrays.toString(Arrays.copyOfRange(delays, skip, expect));
        say("{\"count\":" + expect + ",\"verdict\":\"" + verdict(expect) + "\",\"delays_us\":" + late + "," + ended + "}");
    }

    private void member(Client client) throws Exception {
        int pause = number("handler_ms", 0);
        OutputStream lines = Files.newOutputStream(
            Path.of(text("lines")), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        client.consume((key, event, position) -> {
            Thread.sleep(pause);
            lines.write((System.nanoTime() + " " + key + " " + event.get("n") + "\n").getBytes(StandardCharsets.UTF_8));
            return false;
        });
        new CountDownLatch(1).await();
    }

    private static synchronized void say(String line) {
        out.println(line);
        out.flush();
    }

    /** Wall time and CPU time of this process and of the server, from its creation to {@code stop}. */
    private final class Stopwatch {
        private final double server = serverCpu();
        private final long client = clientCpu();
        private final long wall = System.nanoTime();

        String stop() throws Exception {
            double seconds = (System.nanoTime() - wall) / 1e9;
            double ours = (clientCpu() - client) / 1e9;
            return "\"seconds\":" + seconds + ",\"client_cpu\":" + ours + ",\"server_cpu\":" + (serverCpu() - server);
        }

        Stopwatch() throws Exception {
        }

        private double serverCpu() throws Exception {
            long ticks = 0;
            for (String pid : text("pids").split(",")) {
                String stat = Files.readString(Path.of("/proc/" + pid + "/stat"));
                String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
                ticks += Long.parseLong(fields[11]) + Long.parseLong(fields[12]);
            }
            return ticks / TICKS;
        }

        private long clientCpu() {
            return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
        }
    }
}

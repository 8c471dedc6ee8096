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
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

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
    private static final int MOST = 3_000_000;
    private static final int MOST_BYTES = 300_000_000; // fits into the heap; no Java client sends more in a round
    private static final int WARM_UP_SHARE = 8;
    private static final int PROBES = 64;
    private static final int QUIET_MILLIS = 30_000;
    private static final int FIRST_SHARE = 4;
    private static final double TICKS = 100.0; // of /proc, on every Linux
    private static final ObjectMapper JSON = new ObjectMapper();
    private static PrintStream out;

    private final Map<String, String> words = new HashMap<>();
    private final Map<String, Seen> seen = new ConcurrentHashMap<>();
    private final AtomicInteger repeats = new AtomicInteger();
    private int made;

    /** What was read of one key. */
    private static final class Seen {
        private final Set<Integer> missing = new HashSet<>();
        private int next;
        private int late;

        /** Whether the message is new; a repeat is not. */
        synchronized boolean see(int number) {
            if (number >= next) {
                for (int skipped = next; skipped < number; skipped++) {
                    missing.add(skipped);
                }
                next = number + 1;
                return true;
            }
            if (missing.remove(number)) {
                late++;
                return true;
            }
            return false;
        }

        synchronized int distinct() {
            return next - missing.size();
        }
    }

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

    private List<Item> items(int count, String prefix) {
        int keys = number("keys", 1);
        List<Item> items = new ArrayList<>(count);
        for (int i = 0; i < count; i++, made++) {
            items.add(item(prefix + "-" + made % keys, made / keys, number("size", 100), 0));
        }
        return items;
    }

    /** Whether the message is new; a repeat is not. */
    private boolean see(String key, int number) {
        boolean isNew = seen.computeIfAbsent(key, any -> new Seen()).see(number);
        if (!isNew) {
            repeats.incrementAndGet();
        }
        return isNew;
    }

    private int distinct() {
        return seen.values().stream().mapToInt(Seen::distinct).sum();
    }

    /** What is wrong with the messages of the keys that begin with this prefix, or "pass"; as order.py says it. */
    private String verdict(int expected, String prefix) {
        int distinct = 0;
        int late = 0;
        for (Map.Entry<String, Seen> each : seen.entrySet()) {
            if (prefix.isEmpty() || each.getKey().substring(0, each.getKey().lastIndexOf('-')).equals(prefix)) {
                distinct += each.getValue().distinct();
                late += each.getValue().late;
            }
        }
        List<String> wrong = new ArrayList<>();
        if (distinct < expected) {
            wrong.add(String.format(Locale.ROOT, "lost %,d of %,d", expected - distinct, expected));
        }
        if (distinct > expected) {
            wrong.add(String.format(Locale.ROOT, "%,d more than the %,d acknowledged", distinct - expected, expected));
        }
        if (late > 0) {
            wrong.add(String.format(Locale.ROOT, "%,d of %,d out of order", late, expected));
        }
        return wrong.isEmpty() ? "pass" : String.join(", ", wrong);
    }

    private interface Result {
        void say() throws Exception;
    }

    /** Ends the process with its result if nothing new comes for a while. */
    private void endWhenQuiet(Result result) {
        int quiet = number("quiet_ms", QUIET_MILLIS);
        Thread watch = new Thread(() -> {
            try {
                int before = 0;
                long since = System.nanoTime();
                while (System.nanoTime() - since < quiet * 1_000_000L * (before > 0 ? 1 : FIRST_SHARE)) {
                    Thread.sleep(quiet / 20);
                    int now = distinct();
                    if (now != before) {
                        before = now;
                        since = System.nanoTime();
                    }
                }
                if (before > 0) {
                    result.say();
                    Runtime.getRuntime().halt(0);
                }
                System.err.println("no message came within " + FIRST_SHARE * quiet / 1000 + " s");
            } catch (Exception failure) {
                failure.printStackTrace();
            }
            Runtime.getRuntime().halt(1);
        });
        watch.setDaemon(true);
        watch.start();
    }

    // roles

    private void fill(Client client) throws Exception {
        int count = number("count", 0);
        made = number("first", 0);
        client.batch(items(count, words.getOrDefault("prefix", "key")));
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
            made = 0;
            measure(way, sending);
        }
    }

    private void measure(String way, Sending sending) throws Exception {
        boolean one = way.equals("one");
        int count = one ? WARM_UP_ONE : WARM_UP_MANY;
        int most = Math.min(MOST, MOST_BYTES / number("size", 100));
        double target = number("ms", 1000) / (one ? 2000.0 : 1000.0);
        for (boolean over = false; !over; ) { // as WarmUp in clients/roles.py
            List<Item> items = items(count, way);
            long began = System.nanoTime();
            sending.send(items);
            double seconds = (System.nanoTime() - began) / 1e9;
            over = seconds >= target / WARM_UP_SHARE || count >= most;
            int worth = (int) (count / seconds * (over ? target : 1.5 * target / WARM_UP_SHARE));
            count = Math.min(most, Math.max(LEAST, over ? worth : Math.max(worth, 2 * count)));
        }
        List<Item> items = items(count, way);
        Stopwatch watch = new Stopwatch();
        sending.send(items);
        String ended = watch.stop();
        say("{\"way\":\"" + way + "\",\"count\":" + count + ",\"sent\":" + made + "," + ended + "}");
    }

    private void read(Client client) throws Exception {
        int expect = number("expect", 0);
        int pause = number("handler_ms", 0);
        int warm = number("warm", 1);
        AtomicInteger turns = new AtomicInteger();
        AtomicInteger last = new AtomicInteger(expect);
        AtomicLong latest = new AtomicLong();
        Stopwatch[] watch = new Stopwatch[1];
        String[] ended = new String[1];
        CountDownLatch over = new CountDownLatch(1);
        Result result = () -> {
            List<String> verdicts = new ArrayList<>();
            for (String part : words.getOrDefault("parts", ":" + expect).split(",")) {
                String prefix = part.substring(0, part.indexOf(':'));
                int size = Integer.parseInt(part.substring(part.indexOf(':') + 1));
                verdicts.add("\"" + prefix + "\":\"" + verdict(size, prefix) + "\"");
            }
            say("{\"count\":" + (expect - warm) + ",\"repeats\":" + repeats + ",\"verdict\":\"" + verdict(expect, "")
                + "\",\"verdicts\":{" + String.join(",", verdicts) + "}" + (ended[0] == null ? "" : "," + ended[0]) + "}");
        };
        endWhenQuiet(result);
        client.consume((key, event, position) -> {
            if (pause > 0) {
                Thread.sleep(pause);
            }
            if (!see(key, ((Number) event.get("n")).intValue())) {
                last.incrementAndGet(); // a repeat does not count towards the end
            }
            latest.lazySet(position);
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
        result.say();
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
        AtomicInteger turns = new AtomicInteger();
        AtomicInteger last = new AtomicInteger(expect);
        long[][] delays = new long[expect][2];
        Set<String> probes = ConcurrentHashMap.newKeySet();
        Stopwatch[] watch = new Stopwatch[1];
        CountDownLatch over = new CountDownLatch(1);
        Result result = () -> {
            String ended = watch[0].stop();
            int count = Math.min(turns.get(), expect);
            long first = Arrays.stream(delays, 0, count).mapToLong(each -> each[0]).min().orElse(0);
            long from = first + number("skip_ms", 0) * 1_000_000L;
            long[] late = Arrays.stream(delays, 0, count).filter(each -> each[0] >= from).mapToLong(each -> each[1]).toArray();
            say("{\"count\":" + count + ",\"verdict\":\"" + verdict(expect, "") + "\",\"delays_us\":" + Arrays.toString(late)
                + "," + ended + "}");
        };
        client.consume((key, event, position) -> {
            if (key.startsWith("probe")) {
                if (probes.add(key) && probes.size() == PROBES) {
                    watch[0] = new Stopwatch();
                    say("{\"ready\":true}");
                    endWhenQuiet(result);
                }
                return false;
            }
            long due = ((Number) event.get("at")).longValue();
            long delay = System.nanoTime() - due;
            if (!see(key, ((Number) event.get("n")).intValue())) {
                last.incrementAndGet();
            }
            int turn = turns.getAndIncrement();
            if (turn < expect) {
                delays[turn][0] = due;
                delays[turn][1] = delay / 1000;
            }
            if (turn + 1 == last.get()) {
                over.countDown();
            }
            return turn + 1 >= last.get();
        });
        over.await();
        result.say();
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

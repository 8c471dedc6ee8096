import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HexFormat;
import org.apache.rocketmq.common.message.MessageExt;

/** A message as the Python side sees it: the start of its body, and a digest for the rest. */
final class Described {
    private static final int SHOWN = 200;

    private Described() {}

    static JSONObject message(MessageExt message) {
        byte[] body = message.getBody();
        String text = new String(body, 0, Math.min(SHOWN, body.length), StandardCharsets.UTF_8);
        return new JSONObject()
            .fluentPut("topic", message.getTopic())
            .fluentPut("queue", message.getQueueId())
            .fluentPut("offset", message.getQueueOffset())
            .fluentPut("id", message.getMsgId())
            .fluentPut("keys", message.getKeys())
            .fluentPut("tags", message.getTags())
            .fluentPut("attempts", message.getReconsumeTimes())
            .fluentPut("body", text)
            .fluentPut("size", body.length)
            .fluentPut("sha1", sha1(body))
            .fluentPut("store_ms", message.getStoreTimestamp())
            .fluentPut("properties", message.getProperties());
    }

    static String sha1(byte[] body) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-1").digest(body));
        } catch (java.security.NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}

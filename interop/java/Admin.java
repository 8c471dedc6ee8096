import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What RocketMQ's own admin tool asks, through its own class. */
final class Admin {
    private final String nameServer;
    private DefaultMQAdminExt tool;

    Admin(String nameServer) {
        this.nameServer = nameServer;
    }

    Object perform(String what, JSONObject request) throws Exception {
        String topic = request.getString("topic");
        String group = request.getString("group");
        switch (what) {
            case "admin.create_topic": return createTopic(topic, request.getIntValue("queues"));
            case "admin.reset": return reset(topic, group, request.getLongValue("timestamp_ms"));
            case "admin.view": return Described.message(tool().viewMessage(topic, request.getString("message")));
            case "admin.query": return query(topic, request);
            case "admin.progress": return progress(topic, group);
            case "admin.bounds": return bounds(topic);
            case "admin.members": return members(group);
            case "admin.search": return search(topic, request);
            default: throw new IllegalArgumentException("unknown command " + what);
        }
    }

    private synchronized DefaultMQAdminExt tool() throws Exception {
        if (tool == null) {
            DefaultMQAdminExt starting = new DefaultMQAdminExt(10_000);
            starting.setNamesrvAddr(nameServer);
            starting.setInstanceName("admin");
            starting.start();
            tool = starting;
        }
        return tool;
    }

    private Object createTopic(String topic, int queues) throws Exception {
        for (var broker : tool().examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            tool().createAndUpdateTopicConfig(broker.selectBrokerAddr(), new TopicConfig(topic, queues, queues, 6));
        }
        return true;
    }

    /** Falls back like mqadmin does: brokers that only reset groups that are online refuse the first way. */
    private Object reset(String topic, String group, long timestamp) throws Exception {
        JSONObject offsets = new JSONObject();
        try {
            tool().resetOffsetByTimestamp(topic, group, timestamp, true)
                .forEach((queue, offset) -> offsets.put(String.valueOf(queue.getQueueId()), offset));
        } catch (MQClientException refused) {
            for (var each : tool().resetOffsetByTimestampOld(group, topic, timestamp, true)) {
                offsets.put(String.valueOf(each.getQueueId()), each.getRollbackOffset());
            }
        }
        return offsets;
    }

    private Object query(String topic, JSONObject request) throws Exception {
        return Harness.found(tool().queryMessage(topic, request.getString("key"), 32, 0, Long.MAX_VALUE)
            .getMessageList());
    }

    private Object progress(String topic, String group) throws Exception {
        JSONObject offsets = new JSONObject();
        for (var each : tool().examineConsumeStats(group, topic).getOffsetTable().entrySet()) {
            if (each.getKey().getTopic().equals(topic)) {
                offsets.put(String.valueOf(each.getKey().getQueueId()), each.getValue().getConsumerOffset());
            }
        }
        return offsets;
    }

    private Object bounds(String topic) throws Exception {
        JSONObject all = new JSONObject();
        for (var each : tool().examineTopicStats(topic).getOffsetTable().entrySet()) {
            JSONArray pair = new JSONArray();
            pair.add(each.getValue().getMinOffset());
            pair.add(each.getValue().getMaxOffset());
            all.put(String.valueOf(each.getKey().getQueueId()), pair);
        }
        return all;
    }

    private Object members(String group) throws Exception {
        JSONArray ids = new JSONArray();
        for (var each : tool().examineConsumerConnectionInfo(group).getConnectionSet()) {
            ids.add(each.getClientId());
        }
        return ids;
    }

    private Object search(String topic, JSONObject request) throws Exception {
        JSONObject offsets = new JSONObject();
        for (var each : tool().examineTopicStats(topic).getOffsetTable().keySet()) {
            offsets.put(String.valueOf(each.getQueueId()),
                tool().searchOffset(each, request.getLongValue("timestamp_ms")));
        }
        return offsets;
    }
}

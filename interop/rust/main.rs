// One job for the crate rocketmq-client-v4: `client ADDRESS JOB`. The job and the lines that it prints are described in
// ../README.md.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rocketmq_client_v4::consumer::message_handler::MessageHandler;
use rocketmq_client_v4::consumer::pull_consumer_v2::PullConsumer;
use rocketmq_client_v4::producer::Producer;
use rocketmq_client_v4::protocols::body::message_body::MessageBody;
use serde_json::{json, Value};
use tokio::io::AsyncReadExt;
use tokio::sync::RwLock;

fn text(job: &Value, name: &str) -> String {
    job[name].as_str().unwrap_or("").to_string()
}

struct Printer {}

impl MessageHandler for Printer {
    async fn handle(&self, message: &MessageBody) {
        let body = String::from_utf8_lossy(&message.body);
        let got = json!({
            "body": body, "queue": message.queue_id, "offset": message.queue_offset, "attempts": message.reconsume_times
        });
        println!("{}", json!({ "got": got }));
    }
}

async fn send(address: String, job: &Value) {
    let mut producer = Producer::new("rust-senders".to_string(), address).await;
    for each in job["messages"].as_array().unwrap() {
        let body = text(each, "body");
        let mut properties = HashMap::from([("KEYS".to_string(), body.clone())]);
        for (field, property) in [("tag", "TAGS"), ("key", "__SHARDINGKEY")] {
            if !text(each, field).is_empty() {
                properties.insert(property.to_string(), text(each, field));
            }
        }
        if let Some(level) = each["delay"].as_i64().filter(|level| *level > 0) {
            properties.insert("DELAY".to_string(), level.to_string());
        }
        producer.send_with_properties(text(job, "topic"), properties, body.clone().into_bytes()).await.unwrap();
        // The crate neither lets the caller choose a queue nor says which one it chose.
        println!("{}", json!({"sent": {"body": body, "queue": null, "offset": null, "id": null}}));
    }
    tokio::time::sleep(Duration::from_secs(2)).await; // sends are handed to a task that reports nothing
}

async fn consume(address: String, job: &Value) {
    let (group, topic) = (text(job, "group"), text(job, "topic"));
    let consumer = if job["broadcast"] == true {
        PullConsumer::new_broadcast_consumer(address, group, topic)
    } else {
        PullConsumer::new(address, group, topic)
    };
    let running = Arc::new(RwLock::new(true));
    let run = running.clone();
    tokio::spawn(async move { consumer.start_consume(Arc::new(Printer {}), run).await });
    println!("{}", json!({"ready": true}));
    let mut rest = Vec::new();
    let _ = tokio::io::stdin().read_to_end(&mut rest).await;
    *running.write().await = false;
    tokio::time::sleep(Duration::from_secs(2)).await;
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let job: Value = serde_json::from_str(&arguments[2]).unwrap();
    let unsupported = ["orderly", "trace", "from_last"].iter().any(|name| job[*name] == true)
        || job["tags"].as_str().unwrap_or("*") != "*"
        || !job["fail"].as_array().map(Vec::is_empty).unwrap_or(true);
    match (job["do"].as_str(), unsupported) {
        (Some("send"), false) => send(arguments[1].clone(), &job).await,
        (Some("consume"), false) => consume(arguments[1].clone(), &job).await,
        _ => println!("{}", json!({"unsupported": job["do"]})),
    }
    std::process::exit(0);
}

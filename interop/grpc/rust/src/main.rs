//! RocketMQ's official Rust client 5.x as a program: `client ROLE name=value ...`, as `client.py` describes. The package
//! has a producer and a simple consumer, and no push consumer.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

type Options = HashMap<String, String>;

fn say(what: Value) {
    println!("{what}");
}

fn at() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

fn number(options: &Options, name: &str, otherwise: u64) -> u64 {
    options.get(name).map_or(otherwise, |text| text.parse().unwrap())
}

fn configuration(options: &Options) -> ClientOption {
    let mut made = ClientOption::default();
    made.set_access_url(options["server"].clone());
    made.set_enable_tls(options.contains_key("tls"));
    if let Some(user) = options.get("user") {
        made.set_access_key(user.clone());
        made.set_secret_key(options["secret"].clone());
    }
    made.set_long_polling_timeout(Duration::from_secs(number(options, "wait", 3)));
    made
}

async fn send(options: &Options) {
    let topic = options["topic"].clone();
    let mut settings = ProducerOption::default();
    settings.set_topics(vec![topic.clone()]);
    let mut producer = Producer::new(settings, configuration(options)).unwrap();
    producer.start().await.unwrap();
    say(json!({"ready": true}));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        let wanted: Value = serde_json::from_str(&line).unwrap();
        let body = wanted["body"].as_str().unwrap().to_string();
        let mut message = MessageBuilder::builder().set_topic(&topic).set_body(body.clone().into_bytes());
        if let Some(key) = wanted["key"].as_str() {
            message = message.set_message_group(key);
        }
        if let Some(tag) = wanted["tag"].as_str() {
            message = message.set_tag(tag);
        }
        match producer.send(message.build().unwrap()).await {
            Ok(receipt) => say(json!({"sent": body, "id": receipt.message_id()})),
            Err(error) => say(json!({"failed": body, "why": error.to_string()})),
        }
    }
    let _ = producer.shutdown().await;
    say(json!({"ended": true}));
}

fn described(message: &MessageView) -> Value {
    json!({
        "got": String::from_utf8_lossy(message.body()), "key": message.message_group(),
        "attempt": message.delivery_attempt(), "id": message.message_id(), "tag": message.tag(),
        "properties": message.properties(), "at": at(),
    })
}

async fn simple(options: &Options) {
    let topic = options["topic"].clone();
    let mut settings = SimpleConsumerOption::default();
    settings.set_topics(vec![topic.clone()]);
    settings.set_consumer_group(options["group"].clone());
    let mut consumer = SimpleConsumer::new(settings, configuration(options)).unwrap();
    consumer.start().await.unwrap();
    say(json!({"ready": true}));
    let tags = FilterExpression::new(FilterType::Tag, options.get("tags").map_or("*", String::as_str));
    let batch = number(options, "batch", 3) as i32;
    let invisible = Duration::from_secs(number(options, "invisible", 10));
    let mut ignored: HashSet<&str> = options.get("ignore").map_or("", String::as_str).split(',').collect();
    let ended = tokio::spawn(async { tokio::io::stdin().read_to_end(&mut Vec::new()).await });
    while !ended.is_finished() {
        let messages = match consumer.receive_with(&topic, &tags, batch, invisible).await {
            Ok(messages) => messages,
            Err(error) => {
                say(json!({"error": error.to_string()}));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        for message in messages {
            let body = String::from_utf8_lossy(message.body()).to_string();
            say(described(&message));
            if ignored.remove(body.as_str()) {
                continue;
            }
            match consumer.ack(&message).await {
                Ok(()) => say(json!({"done": body, "at": at()})),
                Err(error) => say(json!({"refused": body, "why": error.to_string()})),
            }
        }
    }
    let _ = consumer.shutdown().await;
    say(json!({"ended": true}));
}

#[tokio::main]
async fn main() {
    let mut words = std::env::args().skip(1);
    let role = words.next().unwrap();
    let options: Options = words
        .map(|word| word.split_once('=').map(|(name, text)| (name.to_string(), text.to_string())).unwrap())
        .collect();
    match role.as_str() {
        "send" => send(&options).await,
        "simple" => simple(&options).await,
        _ => say(json!({"unknown": role})),
    }
}

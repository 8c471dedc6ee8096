// One job for Apache's Go client: `client ADDRESS JOB`. The job and the lines that it prints are described in ../README.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type message struct {
	Key   string `json:"key"`
	Body  string `json:"body"`
	Tag   string `json:"tag"`
	Delay int    `json:"delay"`
}

type job struct {
	Do        string    `json:"do"`
	Topic     string    `json:"topic"`
	Group     string    `json:"group"`
	Messages  []message `json:"messages"`
	Trace     bool      `json:"trace"`
	Tags      string    `json:"tags"`
	Orderly   bool      `json:"orderly"`
	Broadcast bool      `json:"broadcast"`
	FromLast  bool      `json:"from_last"`
	Fail      []string  `json:"fail"`
	Body      string    `json:"body"`
}

var printing sync.Mutex

func say(what string, value any) {
	printing.Lock()
	defer printing.Unlock()
	line, _ := json.Marshal(map[string]any{what: value})
	fmt.Println(string(line))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func newProducer(address []string, group string, traced bool) (p interface {
	Start() error
	Shutdown() error
	SendSync(context.Context, ...*primitive.Message) (*primitive.SendResult, error)
	Request(context.Context, time.Duration, *primitive.Message) (*primitive.Message, error)
}) {
	options := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver(address)),
		producer.WithGroupName(group),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	}
	if traced {
		trace := &primitive.TraceConfig{Access: primitive.Local, Resolver: primitive.NewPassthroughResolver(address)}
		options = append(options, producer.WithTrace(trace))
	}
	made, err := producer.NewDefaultProducer(options...)
	must(err)
	must(made.Start())
	return made
}

func send(address []string, todo job) {
	p := newProducer(address, "go-senders", todo.Trace)
	for _, each := range todo.Messages {
		m := primitive.NewMessage(todo.Topic, []byte(each.Body)).WithShardingKey(each.Key).WithTag(each.Tag)
		m.WithKeys([]string{each.Body})
		if each.Delay > 0 {
			m.WithDelayTimeLevel(each.Delay)
		}
		result, err := p.SendSync(context.Background(), m)
		must(err)
		say("sent", map[string]any{
			"body": each.Body, "queue": result.MessageQueue.QueueId, "offset": result.QueueOffset, "id": result.OffsetMsgID,
		})
	}
	if todo.Trace {
		time.Sleep(3 * time.Second) // the client sends what it has traced every second
	}
	must(p.Shutdown())
}

func consume(address []string, todo job, handle func(*primitive.MessageExt) consumer.ConsumeResult) {
	model, from := consumer.Clustering, consumer.ConsumeFromFirstOffset
	if todo.Broadcast {
		model = consumer.BroadCasting
	}
	if todo.FromLast {
		from = consumer.ConsumeFromLastOffset
	}
	c, err := consumer.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver(address)),
		consumer.WithGroupName(todo.Group),
		consumer.WithInstance(fmt.Sprint(os.Getpid())),
		consumer.WithConsumerModel(model),
		consumer.WithConsumeFromWhere(from),
		consumer.WithConsumerOrder(todo.Orderly),
		consumer.WithSuspendCurrentQueueTimeMillis(100*time.Millisecond),
	)
	must(err)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: todo.Tags}
	must(c.Subscribe(todo.Topic, selector, func(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, each := range batch {
			if outcome := handle(each); outcome != consumer.ConsumeSuccess {
				return outcome, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
	say("ready", true)
	bufio.NewReader(os.Stdin).ReadString('\n')
	must(c.Shutdown())
}

func handler(todo job) func(*primitive.MessageExt) consumer.ConsumeResult {
	var guard sync.Mutex
	failing := map[string]bool{}
	for _, body := range todo.Fail {
		failing[body] = true
	}
	return func(m *primitive.MessageExt) consumer.ConsumeResult {
		guard.Lock()
		defer guard.Unlock()
		body := string(m.Body)
		say("got", map[string]any{
			"body": body, "queue": m.Queue.QueueId, "offset": m.QueueOffset, "attempts": m.ReconsumeTimes,
		})
		if failing[body] {
			delete(failing, body)
			if todo.Orderly {
				return consumer.SuspendCurrentQueueAMoment
			}
			return consumer.ConsumeRetryLater
		}
		return consumer.ConsumeSuccess
	}
}

func main() {
	rlog.SetLogLevel("error")
	address := []string{os.Args[1]}
	var todo job
	must(json.Unmarshal([]byte(os.Args[2]), &todo))
	switch todo.Do {
	case "send":
		send(address, todo)
	case "consume":
		consume(address, todo, handler(todo))
	case "request":
		p := newProducer(address, "go-askers", false)
		reply, err := p.Request(context.Background(), 20*time.Second, primitive.NewMessage(todo.Topic, []byte(todo.Body)))
		must(err)
		say("replied", string(reply.Body))
		must(p.Shutdown())
	case "reply":
		p := newProducer(address, "go-repliers", false)
		consume(address, todo, func(m *primitive.MessageExt) consumer.ConsumeResult {
			// A Go requester is known to the broker only after its first heartbeat, a second after its start.
			time.Sleep(1500 * time.Millisecond)
			reply, err := consumer.CreateReplyMessage(m, []byte("re: "+string(m.Body)))
			must(err)
			reply.Body = []byte("re: " + string(m.Body)) // the client puts the body among the properties
			_, err = p.SendSync(context.Background(), reply)
			must(err)
			return consumer.ConsumeSuccess
		})
	default:
		say("unsupported", todo.Do)
	}
}

// RocketMQ's official Go client 5.x as a program, with the roles of client.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var (
	options = map[string]string{}
	saying  sync.Mutex
)

type line map[string]any

func say(what line) {
	saying.Lock()
	defer saying.Unlock()
	text, _ := json.Marshal(what)
	os.Stdout.Write(append(text, '\n'))
}

func now() float64 { return float64(time.Now().UnixMilli()) / 1000 }

func seconds(name string, otherwise float64) time.Duration {
	given, err := strconv.ParseFloat(options[name], 64)
	if err != nil {
		given = otherwise
	}
	return time.Duration(given * float64(time.Second))
}

func listed(name string) map[string]bool {
	found := map[string]bool{}
	for _, each := range strings.Split(options[name], ",") {
		if each != "" {
			found[each] = true
		}
	}
	return found
}

func config() *mq.Config {
	return &mq.Config{
		Endpoint:      options["server"],
		ConsumerGroup: options["group"],
		Credentials:   &credentials.SessionCredentials{AccessKey: options["user"], AccessSecret: options["secret"]},
	}
}

func check(err error) {
	if err != nil {
		say(line{"why": err.Error()})
		os.Exit(1)
	}
}

func tags() *mq.FilterExpression {
	if given := options["tags"]; given != "" {
		return mq.NewFilterExpression(given)
	}
	return mq.SUB_ALL
}

func got(message *mq.MessageView) string {
	body := string(message.GetBody())
	say(line{"got": body, "key": message.GetMessageGroup(), "attempt": message.GetDeliveryAttempt(),
		"id": message.GetMessageId(), "tag": message.GetTag(), "at": now()})
	return body
}

func send() {
	producer, err := mq.NewProducer(config(), mq.WithTopics(options["topic"]))
	check(err)
	check(producer.Start())
	say(line{"ready": true})
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		var wanted struct{ Key, Body, Tag string }
		check(json.Unmarshal(input.Bytes(), &wanted))
		message := &mq.Message{Topic: options["topic"], Body: []byte(wanted.Body)}
		if wanted.Key != "" {
			message.SetMessageGroup(wanted.Key)
		}
		if wanted.Tag != "" {
			message.SetTag(wanted.Tag)
		}
		receipts, err := producer.Send(context.Background(), message)
		if err != nil {
			say(line{"failed": wanted.Body, "why": err.Error()})
			continue
		}
		say(line{"sent": wanted.Body, "id": receipts[0].MessageID})
	}
	check(producer.GracefulStop())
}

func push() {
	failing, failed, guard := listed("fail"), map[string]bool{}, sync.Mutex{}
	consumer, err := mq.NewPushConsumer(config(),
		mq.WithPushAwaitDuration(5*time.Second),
		mq.WithPushSubscriptionExpressions(map[string]*mq.FilterExpression{options["topic"]: tags()}),
		mq.WithPushConsumptionThreadCount(20),
		mq.WithPushMaxCacheMessageCount(1024),
		mq.WithPushMessageListener(&mq.FuncMessageListener{Consume: func(message *mq.MessageView) mq.ConsumerResult {
			body := got(message)
			time.Sleep(seconds("seconds", 0))
			guard.Lock()
			fails := failing[body] && (options["fails"] == "always" || !failed[body])
			failed[body] = true
			guard.Unlock()
			if fails {
				return mq.FAILURE
			}
			say(line{"done": body, "at": now()})
			return mq.SUCCESS
		}}),
	)
	check(err)
	check(consumer.Start())
	say(line{"ready": true})
	io.Copy(io.Discard, os.Stdin)
	check(consumer.GracefulStop())
}

func simple() {
	ignored := listed("ignore")
	consumer, err := mq.NewSimpleConsumer(config(),
		mq.WithSimpleAwaitDuration(seconds("wait", 3)),
		mq.WithSimpleSubscriptionExpressions(map[string]*mq.FilterExpression{options["topic"]: tags()}),
	)
	check(err)
	check(consumer.Start())
	say(line{"ready": true})
	var stopping atomic.Bool
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stopping.Store(true)
	}()
	batch, err := strconv.Atoi(options["batch"])
	if err != nil {
		batch = 3
	}
	for !stopping.Load() {
		messages, err := consumer.Receive(context.Background(), int32(batch), seconds("invisible", 10))
		if err != nil {
			continue // it says so, too, if there is no message
		}
		for _, message := range messages {
			body := got(message)
			if ignored[body] {
				delete(ignored, body)
				continue
			}
			if err := consumer.Ack(context.Background(), message); err != nil {
				say(line{"refused": body, "why": err.Error()})
				continue
			}
			say(line{"done": body, "at": now()})
		}
	}
	check(consumer.GracefulStop())
}

func number(name string, otherwise int) int {
	given, err := strconv.Atoi(options[name])
	if err != nil {
		return otherwise
	}
	return given
}

// load sends as fast as it can, or at a rate: messages "key:number:nanoseconds" of some groups, each group in order.
func load() {
	producer, err := mq.NewProducer(config(), mq.WithTopics(options["topic"]))
	check(err)
	check(producer.Start())
	count, groups, threads := number("count", 1000), number("groups", 100), number("threads", 16)
	pause := time.Duration(0)
	if rate := number("rate", 0); rate > 0 {
		pause = time.Duration(threads) * time.Second / time.Duration(rate)
	}
	var failed atomic.Int64
	var all sync.WaitGroup
	say(line{"ready": true})
	began := time.Now()
	for thread := 0; thread < threads; thread++ {
		all.Add(1)
		go func(thread int) {
			defer all.Done()
			for at := 0; at*groups < count; at++ {
				for group := thread; group < groups; group += threads {
					body := []byte("g" + strconv.Itoa(group) + ":" + strconv.Itoa(at) + ":" +
						strconv.FormatInt(time.Now().UnixNano(), 10) + ":")
					message := &mq.Message{Topic: options["topic"], Body: append(body, make([]byte, 160)...)}
					message.SetMessageGroup("g" + strconv.Itoa(group))
					if _, err := producer.Send(context.Background(), message); err != nil {
						failed.Add(1)
					}
					time.Sleep(pause)
				}
			}
		}(thread)
	}
	all.Wait()
	say(line{"sent": count, "seconds": time.Since(began).Seconds(), "failed": failed.Load()})
	check(producer.GracefulStop())
}

// drain handles so many messages, those of one group slowly, and says how long the others took and what was out of order.
func drain() {
	count, slow := number("count", 1000), options["slow"]
	pause := seconds("pause", 1)
	var guard sync.Mutex
	var began time.Time
	last, waited, wrong, done := map[string]int{}, []float64{}, 0, make(chan bool)
	consumer, err := mq.NewPushConsumer(config(),
		mq.WithPushAwaitDuration(5*time.Second),
		mq.WithPushSubscriptionExpressions(map[string]*mq.FilterExpression{options["topic"]: mq.SUB_ALL}),
		mq.WithPushConsumptionThreadCount(20),
		mq.WithPushMaxCacheMessageCount(1024),
		mq.WithPushMessageListener(&mq.FuncMessageListener{Consume: func(message *mq.MessageView) mq.ConsumerResult {
			words := strings.Split(string(message.GetBody()), ":")
			at, _ := strconv.Atoi(words[1])
			sent, _ := strconv.ParseInt(words[2], 10, 64)
			if words[0] == slow {
				time.Sleep(pause)
				return mq.SUCCESS
			}
			guard.Lock()
			defer guard.Unlock()
			if began.IsZero() {
				began = time.Now()
			}
			if before, known := last[words[0]]; known && at != before+1 && at > before {
				wrong++
			}
			if at >= last[words[0]] {
				last[words[0]] = at
			}
			waited = append(waited, float64(time.Now().UnixNano()-sent)/1e6)
			if len(waited) == count {
				done <- true
			}
			return mq.SUCCESS
		}}),
	)
	check(err)
	check(consumer.Start())
	say(line{"ready": true})
	select {
	case <-done:
	case <-time.After(seconds("patience", 120)):
	}
	guard.Lock()
	took := time.Since(began).Seconds()
	sort.Float64s(waited)
	result := line{"handled": len(waited), "seconds": took, "wrong": wrong}
	if len(waited) > 0 {
		result["p50"], result["most"] = waited[len(waited)/2], waited[len(waited)-1]
	}
	guard.Unlock()
	say(result)
	os.Exit(0)
}

func main() {
	for _, word := range os.Args[2:] {
		name, value, _ := strings.Cut(word, "=")
		options[name] = value
	}
	_, mq.EnableSsl = options["tls"]
	mq.ResetLogger()
	map[string]func(){"send": send, "push": push, "simple": simple, "load": load, "drain": drain}[os.Args[1]]()
	say(line{"ended": true})
}

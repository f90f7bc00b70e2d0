// Command openloop sends HTTP requests at a constant rate whatever the answers
// take, and counts each latency from the moment the request was due. It stands
// in for "spillway load --rate" where the binary has no such verb, and prints
// the same fields for one step.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

type percentiles struct {
	P50 float64 `json:"p50_seconds"`
	P99 float64 `json:"p99_seconds"`
	Max float64 `json:"max_seconds"`
}

type step struct {
	Requests int            `json:"requests"`
	RateHz   float64        `json:"rate_hz"`
	Errors   map[string]int `json:"errors"`
	Response percentiles    `json:"response"` // from the intended start
	Lag      percentiles    `json:"lag"`      // from the intended start to the send
}

type worker struct {
	random        *rand.Rand
	response, lag []float64
	errors        map[string]int
}

var template = regexp.MustCompile(`\{random\(0,(\d+)\)\}`)

func main() {
	address := flag.String("url", "", "URL; {random(0,n)} becomes an integer from 0 to n")
	rate := flag.Float64("rate", 1000, "requests a second")
	duration := flag.Duration("duration", 10*time.Second, "how long to send")
	connections := flag.Int("connections", 64, "connections at most")
	seed := flag.Uint64("random-seed", 1, "seed of the random values")
	flag.Parse()

	client := &fasthttp.Client{MaxConnsPerHost: *connections, ReadTimeout: 30 * time.Second, NoDefaultUserAgentHeader: true}
	due := make(chan time.Time, 1<<16) // a backlog keeps the intended times; what overflows is unsent
	workers := make([]*worker, *connections)
	var group sync.WaitGroup
	for i := range workers {
		w := &worker{random: rand.New(rand.NewPCG(*seed, uint64(i))), errors: map[string]int{}}
		workers[i] = w
		group.Go(func() { w.run(client, *address, due) })
	}
	start := time.Now()
	unsent := pace(start, *rate, int(*rate*duration.Seconds()), due)
	close(due)
	group.Wait()
	took := time.Since(start).Seconds()

	all := worker{errors: map[string]int{"unsent": unsent}}
	for _, w := range workers {
		all.response, all.lag = append(all.response, w.response...), append(all.lag, w.lag...)
		for class, n := range w.errors {
			all.errors[class] += n
		}
	}
	s := step{len(all.response), float64(len(all.response)) / took, all.errors, of(all.response), of(all.lag)}
	line, _ := json.Marshal(map[string]any{"steps": []step{s}}) // numbers and text only
	fmt.Println(string(line))
}

// pace sends n intended times at the rate and returns how many found the backlog full.
func pace(start time.Time, rate float64, n int, due chan<- time.Time) (unsent int) {
	for i := range n {
		at := start.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		time.Sleep(time.Until(at))
		select {
		case due <- at:
		default:
			unsent++
		}
	}
	return unsent
}

// run sends one request for each intended time.
func (w *worker) run(client *fasthttp.Client, address string, due <-chan time.Time) {
	var request fasthttp.Request
	var response fasthttp.Response
	for at := range due {
		request.SetRequestURI(template.ReplaceAllStringFunc(address, w.value))
		w.lag = append(w.lag, time.Since(at).Seconds())
		err := client.Do(&request, &response)
		w.response = append(w.response, time.Since(at).Seconds())
		if err != nil {
			w.errors[err.Error()]++
		} else if response.StatusCode() != fasthttp.StatusOK {
			w.errors["status "+strconv.Itoa(response.StatusCode())]++
		}
	}
}

func (w *worker) value(match string) string {
	bound, _ := strconv.Atoi(template.FindStringSubmatch(match)[1]) // digits only
	return strconv.Itoa(w.random.IntN(bound + 1))
}

// of sorts seconds and returns its percentiles, zeros when it is empty.
func of(seconds []float64) percentiles {
	if len(seconds) == 0 {
		return percentiles{}
	}
	slices.Sort(seconds)
	at := func(p float64) float64 { return seconds[int(math.Ceil(p*float64(len(seconds))))-1] }
	return percentiles{at(0.5), at(0.99), seconds[len(seconds)-1]}
}

//go:build linux && amd64

// A server whose state belongs to one goroutine, which serves the metrics of that loop. Argument: an address.
//
//	go run ./examples/loop 127.0.0.1:8000
//	curl -s http://127.0.0.1:8000/slow
//	curl -s http://127.0.0.1:8000/metrics | grep loop_blocked
//
// The handler of /slow makes a system call that blocks, and all other requests wait.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"headway/debox"
)

// sleepTime is longer than the period of the lag's timer, so that a probe is late.
const sleepTime = 200 * time.Millisecond

func main() {
	address := "127.0.0.1:8000"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	events := make(chan func())
	started := make(chan *debox.Loop)
	go run(events, started)
	watch := <-started
	// do runs a function in the loop and waits for it.
	do := func(event func()) {
		done := make(chan struct{})
		events <- func() {
			event()
			close(done)
		}
		<-done
	}
	go watch.MeasureLag(context.Background(), func(probe func()) { events <- probe })

	served := 0
	http.HandleFunc("/", func(response http.ResponseWriter, _ *http.Request) {
		do(func() { served++ })
		fmt.Fprintln(response, "hello")
	})
	http.HandleFunc("/slow", func(response http.ResponseWriter, _ *http.Request) {
		do(func() {
			served++
			length := syscall.NsecToTimespec(sleepTime.Nanoseconds())
			for syscall.Nanosleep(&length, &length) == syscall.EINTR {
			}
		})
		fmt.Fprintln(response, "slept")
	})
	http.HandleFunc("/metrics", func(response http.ResponseWriter, _ *http.Request) {
		watch.WriteMetrics(response)
	})
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s/\n", listener.Addr())
	log.Fatal(http.Serve(listener, nil))
}

// run is the loop.
func run(events <-chan func(), started chan<- *debox.Loop) {
	watch := debox.WatchLoop()
	defer watch.Close()
	started <- watch
	watch.EndTurn()
	for event := range events {
		watch.BeginTurn()
		event()
		watch.EndTurn()
	}
}

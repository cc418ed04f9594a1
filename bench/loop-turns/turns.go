// Nanoseconds per turn of a goroutine that handles events. With "watched", by debox.WatchLoop.
package main

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"headway/debox"
)

const turns = 1_000_000

func main() {
	runtime.LockOSThread()
	var watch *debox.Loop
	if len(os.Args) > 1 {
		watch = debox.WatchLoop()
	}
	events := make(chan int, 1)
	begun := time.Now()
	for turn := 0; turn < turns; turn++ {
		events <- turn
		<-events
		if watch != nil {
			watch.BeginTurn()
			watch.EndTurn()
		}
	}
	fmt.Printf("%.1f\n", float64(time.Since(begun).Nanoseconds())/turns)
}

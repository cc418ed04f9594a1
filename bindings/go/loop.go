//go:build linux && amd64

// Package debox watches an event loop: how long its turns take, how late it serves an event, and in which system calls
// its thread sleeps. It reads the kernel's record of the thread's own context switches, without cgo.
package debox

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// LagPeriod is how often MeasureLag posts an event.
const LagPeriod = 100 * time.Millisecond

// sitesMax limits how many kernel stacks are kept apart.
const sitesMax = 64

// Loop is a watch over the loop of one goroutine. BeginTurn, EndTurn and Close belong to that goroutine; any may call
// the other methods.
type Loop struct {
	ring    *ring
	level   int
	missing string
	symbols *symbols
	began   time.Time
	pending totals
	mutex   sync.Mutex
	shared  totals
	turns   durations
	lag     durations
}

// wait is how often a thread left the CPU, and for how long.
type wait struct {
	count, nanoseconds uint64
}

// totals is what a thread's record adds up to.
type totals struct {
	// By kernel stack, innermost first, as a text of bytes; empty if it is not known.
	sleeps      map[string]wait
	waits       wait
	preemptions uint64
	lost        uint64
}

// WatchLoop watches the calling goroutine, which stays on its thread until Close. Without the right to observe its
// thread it only measures times; Level tells. It loads the kernel's symbols, which takes tens of milliseconds.
func WatchLoop() *Loop {
	runtime.LockOSThread()
	loop := &Loop{shared: totals{sleeps: map[string]wait{}}, pending: totals{sleeps: map[string]wait{}}}
	loop.ring, loop.level, loop.missing = openRing()
	loop.symbols = loadSymbols()
	return loop
}

// Level is 2 if sleeps are seen with their calls, 1 without them, 0 if no sleep is seen; and what is missing.
func (loop *Loop) Level() (int, string) {
	return loop.level, loop.missing
}

// BeginTurn is to be called after the wait for events.
func (loop *Loop) BeginTurn() {
	loop.drain(func(sleep sleep) {
		loop.pending.waits.count++
		loop.pending.waits.nanoseconds += sleep.nanoseconds
	})
	loop.began = time.Now()
}

// EndTurn is to be called before the wait for events. It never waits: sums which a reader holds are added later.
func (loop *Loop) EndTurn() {
	loop.drain(func(sleep sleep) { loop.pending.add(string(sleep.stack), sleep.nanoseconds, 1) })
	if !loop.began.IsZero() {
		loop.turns.record(time.Since(loop.began))
		loop.began = time.Time{}
	}
	if loop.mutex.TryLock() {
		loop.shared.merge(&loop.pending)
		loop.mutex.Unlock()
		clear(loop.pending.sleeps)
		loop.pending = totals{sleeps: loop.pending.sleeps}
	}
}

// ObserveLag adds the time from when an event was due to when the loop served it.
func (loop *Loop) ObserveLag(late time.Duration) {
	loop.lag.record(late)
}

// MeasureLag posts an event to the loop ten times per second and measures how late the loop runs it. It returns when
// the context ends.
func (loop *Loop) MeasureLag(ctx context.Context, post func(func())) {
	ticker := time.NewTicker(LagPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case due := <-ticker.C:
			post(func() { loop.ObserveLag(time.Since(due)) })
		}
	}
}

// Close ends the watch. The metrics stay.
func (loop *Loop) Close() {
	if loop.ring != nil {
		loop.ring.close()
		loop.ring = nil
	}
	runtime.UnlockOSThread()
}

func (loop *Loop) drain(take func(sleep)) {
	if loop.ring == nil {
		return
	}
	loop.ring.drain(func(sleep sleep) {
		if sleep.preempted {
			loop.pending.preemptions++
		} else {
			take(sleep)
		}
	}, &loop.pending.lost)
}

func (sums *totals) add(stack string, nanoseconds, count uint64) {
	if _, known := sums.sleeps[stack]; !known && len(sums.sleeps) >= sitesMax {
		stack = ""
	}
	sleep := sums.sleeps[stack]
	sleep.count += count
	sleep.nanoseconds += nanoseconds
	sums.sleeps[stack] = sleep
}

func (sums *totals) merge(other *totals) {
	for stack, sleep := range other.sleeps {
		sums.add(stack, sleep.nanoseconds, sleep.count)
	}
	sums.waits.count += other.waits.count
	sums.waits.nanoseconds += other.waits.nanoseconds
	sums.preemptions += other.preemptions
	sums.lost += other.lost
}

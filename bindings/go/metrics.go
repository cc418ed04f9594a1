//go:build linux && amd64

package debox

import (
	"bytes"
	"fmt"
	"io"
	"sort"
	"sync/atomic"
	"time"
)

// buckets are limits of powers of two: 16 µs to 17 s, as in `headway serve`.
const (
	firstLimit = 16 * time.Microsecond
	buckets    = 21
)

// durations counts durations by size, from several goroutines.
type durations struct {
	// The last one has what is longer.
	counts [buckets + 1]atomic.Uint64
	sum    atomic.Uint64
}

func (durations *durations) record(duration time.Duration) {
	bucket := 0
	for bucket < buckets && duration > firstLimit<<bucket {
		bucket++
	}
	durations.counts[bucket].Add(1)
	durations.sum.Add(uint64(max(duration, 0)))
}

func (durations *durations) write(out io.Writer, name, help string) {
	fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name)
	below := uint64(0)
	for bucket := 0; bucket < buckets; bucket++ {
		below += durations.counts[bucket].Load()
		fmt.Fprintf(out, "%s_bucket{le=\"%v\"} %d\n", name, (firstLimit << bucket).Seconds(), below)
	}
	below += durations.counts[buckets].Load()
	fmt.Fprintf(out, "%s_bucket{le=\"+Inf\"} %d\n%s_sum %v\n%s_count %d\n", name, below, name,
		time.Duration(durations.sum.Load()).Seconds(), name, below)
}

// WriteMetrics writes the metrics in the Prometheus text format, with the names of `headway serve`.
func (loop *Loop) WriteMetrics(writer io.Writer) error {
	var out bytes.Buffer
	loop.turns.write(&out, "headway_loop_turn_seconds",
		"Time of a turn of the event loop, from the end of one wait for events to the next, preemptions included.")
	loop.lag.write(&out, "headway_loop_lag_seconds",
		"How late the event loop served an event that was posted for this. Ten times per second.")
	loop.mutex.Lock()
	seen := totals{sleeps: map[string]wait{}}
	seen.merge(&loop.shared)
	loop.mutex.Unlock()
	loop.writeBlocked(&out, seen.sleeps)
	single := func(name, kind, help string, value any) {
		fmt.Fprintf(&out, "# HELP %s %s\n# TYPE %s %s\n%s %v\n", name, help, name, kind, name, value)
	}
	single("headway_loop_waits_total", "counter", "Times that an event loop slept in its event wait.", seen.waits.count)
	single("headway_loop_wait_seconds_total", "counter", "Time that event loops slept in their event wait.",
		seconds(seen.waits.nanoseconds))
	single("headway_loop_preemptions_total", "counter", "Times that the kernel preempted an event loop.", seen.preemptions)
	single("headway_trace_level", "gauge",
		"What the tracer of the event loops sees: 2 is sleeps and stacks, 1 is sleeps only, 0 is nothing.", loop.level)
	single("headway_trace_lost_records_total", "counter",
		"Trace records lost. While this grows, sleeps may be missing.", seen.lost)
	_, err := writer.Write(out.Bytes())
	return err
}

// writeBlocked begins with a series without labels that is always 0, so that an alert on the sum has data before
// anything has blocked.
func (loop *Loop) writeBlocked(out io.Writer, sleeps map[string]wait) {
	series := map[string]wait{`call="",resource="",site=""`: {}}
	for stack, sleep := range sleeps {
		call, site := loop.symbols.reason(stack)
		labels := fmt.Sprintf(`call=%q,resource="unknown",site=%q`, call, site)
		sum := series[labels]
		sum.count += sleep.count
		sum.nanoseconds += sleep.nanoseconds
		series[labels] = sum
	}
	order := make([]string, 0, len(series))
	for labels := range series {
		order = append(order, labels)
	}
	sort.Strings(order)
	for _, family := range []struct {
		name, what string
		value      func(wait) any
	}{
		{"headway_loop_blocked_total", "Times that an event loop", func(sum wait) any { return sum.count }},
		{"headway_loop_blocked_seconds_total", "Time that event loops", func(sum wait) any { return seconds(sum.nanoseconds) }},
	} {
		fmt.Fprintf(out, "# HELP %s %s slept outside the event wait, by system call, resource and kernel function.\n"+
			"# TYPE %s counter\n", family.name, family.what, family.name)
		for _, labels := range order {
			fmt.Fprintf(out, "%s{%s} %v\n", family.name, labels, family.value(series[labels]))
		}
	}
}

func seconds(nanoseconds uint64) float64 {
	return float64(nanoseconds) / 1e9
}

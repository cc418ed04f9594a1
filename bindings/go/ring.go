//go:build linux && amd64

package debox

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// attributes is struct perf_event_attr up to Linux 4.8 (perf_event_open(2)).
type attributes struct {
	kind, size                                          uint32
	config, samplePeriod, sampleType, readFormat, flags uint64
	wakeupEvents, breakpointType                        uint32
	config1, config2, branchSampleType, sampleRegsUser  uint64
	sampleStackUser                                     uint32
	clock                                               int32
	sampleRegsInterrupt                                 uint64
	auxWatermark                                        uint32
	sampleMaxStack, reserved                            uint16
}

const (
	numberOfOpen       = 298
	typeSoftware       = 1
	contextSwitches    = 3
	dummy              = 9
	sampleTime         = 1 << 2
	sampleCallchain    = 1 << 5
	excludeKernel      = 1 << 5
	excludeHypervisor  = 1 << 6
	sampleIDAll        = 1 << 18
	excludeUserStack   = 1 << 22
	useClock           = 1 << 25
	contextSwitch      = 1 << 26
	clockMonotonic     = 1
	closeOnExec        = 1 << 3
	framesMax          = 24
	dataPages          = 16
	headAt, tailAt     = 1024, 1032
	recordLost         = 2
	recordSample       = 9
	recordSwitch       = 14
	switchOut          = 1 << 13
	switchOutPreempted = 1 << 14
	markerMin          = ^uint64(4094)
)

// sleep is a time off the CPU.
type sleep struct {
	nanoseconds uint64
	preempted   bool
	// Kernel addresses in their bytes, innermost first; empty if they are not known.
	stack []byte
}

// ring is the kernel's record of a thread's context switches. Only that thread may use it: then all that happened is
// in it.
type ring struct {
	memory []byte
	data   []byte
	tail   uint64
	// The time off the CPU that has begun.
	since     uint64
	preempted bool
	stack     []byte
}

// openRing opens the best ring for the calling thread, and says what it shows and lacks.
func openRing() (*ring, int, string) {
	common := attributes{
		kind:       typeSoftware,
		size:       uint32(unsafe.Sizeof(attributes{})),
		sampleType: sampleTime,
		flags:      sampleIDAll | useClock | contextSwitch | excludeHypervisor,
		clock:      clockMonotonic,
	}
	stacks := common
	stacks.config = contextSwitches
	stacks.samplePeriod = 1
	stacks.sampleType |= sampleCallchain
	stacks.flags |= excludeUserStack
	stacks.sampleMaxStack = framesMax
	opened, err := open(&stacks)
	if err == nil {
		return opened, 2, ""
	}
	missing := fmt.Sprintf("perf_event_open with stacks: %v; kernel.perf_event_paranoid of 1 or CAP_PERFMON allows it", err)
	// An event that counts nothing needs no right to look into the kernel.
	common.config = dummy
	common.flags |= excludeKernel
	if opened, err = open(&common); err == nil {
		return opened, 1, missing
	}
	return nil, 0, fmt.Sprintf("perf_event_open: %v; kernel.perf_event_paranoid of 2 or CAP_PERFMON allows it", err)
}

func open(event *attributes) (*ring, error) {
	descriptor, _, number := syscall.Syscall6(numberOfOpen, uintptr(unsafe.Pointer(event)), 0, ^uintptr(0), ^uintptr(0),
		closeOnExec, 0)
	if number != 0 {
		return nil, number
	}
	page := os.Getpagesize()
	memory, err := syscall.Mmap(int(descriptor), 0, (1+dataPages)*page, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_SHARED)
	// The mapping keeps the event.
	syscall.Close(int(descriptor))
	if err != nil {
		return nil, err
	}
	return &ring{memory: memory, data: memory[page:]}, nil
}

func (ring *ring) close() {
	syscall.Munmap(ring.memory)
}

func (ring *ring) counter(at int) *uint64 {
	return (*uint64)(unsafe.Pointer(&ring.memory[at]))
}

// word reads a word of the ring; records are of whole words and so is the ring.
func (ring *ring) word(at uint64) uint64 {
	at &= uint64(len(ring.data)) - 1
	return *(*uint64)(unsafe.Pointer(&ring.data[at]))
}

// drain passes on what has ended since the last time.
func (ring *ring) drain(take func(sleep), lost *uint64) {
	head := atomic.LoadUint64(ring.counter(headAt))
	if head == ring.tail {
		return
	}
	for ring.tail != head {
		header := ring.word(ring.tail)
		kind, misc, bytes := uint32(header), uint16(header>>32), header>>48
		if bytes < 16 || bytes%8 != 0 || bytes > head-ring.tail {
			// No kernel writes this.
			*lost++
			ring.tail = head
			break
		}
		switch kind {
		case recordSample:
			ring.end(0, take)
			ring.readStack(bytes)
		case recordSwitch:
			time := ring.word(ring.tail + 8)
			ring.end(time, take)
			if misc&switchOut != 0 {
				ring.since, ring.preempted = time, misc&switchOutPreempted != 0
			}
		case recordLost:
			ring.end(0, take)
			ring.stack = ring.stack[:0]
			*lost += ring.word(ring.tail + 16)
		}
		ring.tail += bytes
	}
	// The thread runs, so the record of its return is lost if it is still away.
	ring.end(0, take)
	ring.stack = ring.stack[:0]
	atomic.StoreUint64(ring.counter(tailAt), ring.tail)
}

// end passes on the time off the CPU that has begun, if there is one; its length is zero if its end was lost.
func (ring *ring) end(time uint64, take func(sleep)) {
	if ring.since == 0 {
		return
	}
	length := uint64(0)
	if time > ring.since {
		length = time - ring.since
	}
	take(sleep{length, ring.preempted, ring.stack})
	ring.since = 0
	ring.stack = ring.stack[:0]
}

func (ring *ring) readStack(bytes uint64) {
	ring.stack = ring.stack[:0]
	if bytes < 24 {
		return
	}
	entries := min(ring.word(ring.tail+16), (bytes-24)/8)
	for entry := uint64(0); entry < entries; entry++ {
		address := ring.word(ring.tail + 24 + 8*entry)
		if address < markerMin {
			for shift := 0; shift < 64; shift += 8 {
				ring.stack = append(ring.stack, byte(address>>shift))
			}
		}
	}
}

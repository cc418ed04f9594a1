//go:build linux && amd64

package debox

import (
	"encoding/binary"
	"os"
	"sort"
	"strconv"
	"strings"
)

// symbols are the kernel's functions by their addresses; none if the kernel hides them.
type symbols struct {
	starts []uint64
	names  []string
}

// machinery are beginnings of functions which only carry a wait out.
var machinery = []string{
	"__schedule", "schedule", "io_schedule", "preempt_schedule", "__cond_resched", "__wait_for_common",
	"do_wait_for_common", "__wait_on_bit", "bit_wait", "__perf_event", "perf_", "__traceiter", "bpf_",
	"finish_task_switch", "context_switch", "__switch_to",
}

// entries are beginnings of functions which are a system call's.
var entries = []string{"__x64_sys_", "__se_sys_", "__do_sys_", "ksys_", "__sys_"}

// aliases are what the kernel calls differently from the manual pages.
var aliases = map[string]string{
	"newstat": "stat", "newfstat": "fstat", "newlstat": "lstat", "sendfile64": "sendfile", "newuname": "uname",
}

func loadSymbols() *symbols {
	text, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		return &symbols{}
	}
	found := &symbols{}
	for _, line := range strings.Split(string(text), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 3 || !strings.Contains("tTwW", fields[1]) || strings.HasPrefix(fields[2], "__pfx_") {
			continue
		}
		address, err := strconv.ParseUint(fields[0], 16, 64)
		if err == nil && address != 0 {
			found.starts = append(found.starts, address)
			found.names = append(found.names, strings.Clone(fields[2]))
		}
	}
	sort.Stable(found)
	return found
}

func (symbols *symbols) Len() int           { return len(symbols.starts) }
func (symbols *symbols) Less(a, b int) bool { return symbols.starts[a] < symbols.starts[b] }
func (symbols *symbols) Swap(a, b int) {
	symbols.starts[a], symbols.starts[b] = symbols.starts[b], symbols.starts[a]
	symbols.names[a], symbols.names[b] = symbols.names[b], symbols.names[a]
}

// name is the function of a return address, which is behind the call.
func (symbols *symbols) name(address uint64) string {
	after := sort.Search(len(symbols.starts), func(at int) bool { return symbols.starts[at] > address-1 })
	if after == 0 {
		return ""
	}
	name, _, _ := strings.Cut(symbols.names[after-1], ".")
	return name
}

// reason is the system call of a kernel stack, and the function in which it waited.
func (symbols *symbols) reason(stack string) (call, site string) {
	call, site = "unknown", "unknown"
	for bytes := []byte(stack); len(bytes) >= 8; bytes = bytes[8:] {
		name := symbols.name(binary.LittleEndian.Uint64(bytes))
		if site == "unknown" && name != "" && !hasPrefix(name, machinery) {
			site = name
		}
		// The outermost decides: a call may be made of others.
		if found := callOf(name); found != "" {
			call = found
		}
	}
	return call, site
}

// callOf is the system call whose function this is; empty if it is none.
func callOf(name string) string {
	if name == "asm_exc_page_fault" || name == "exc_page_fault" {
		return "page-fault"
	}
	for _, entry := range entries {
		if call, found := strings.CutPrefix(name, entry); found {
			if alias, known := aliases[call]; known {
				return alias
			}
			return call
		}
	}
	return ""
}

func hasPrefix(name string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// gVisor's netstack beside fullsend: two stacks joined in one process, or one behind a TUN.
//
// In process it prints one JSON object a line for each test, with the keys of `fullsend perf --json`
// and the test's name. Socket buffers are chosen by trying: each test is run briefly with every
// choice, and measured with the best. With `serve` it is the server of `fullsend perf --connect`.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

const (
	readMax = 128 << 10
	usage   = "usage: bench-gvisor [SECONDS [NAME...]], as in `bench-gvisor 2 rr-1`, or\n" +
		"       bench-gvisor serve TUN ADDRESS BUFFER FLOWS, as in `bench-gvisor serve tun0 10.0.0.2 65536 200`\n"
)

// test is what is measured.
type test struct {
	name string
	nic  nic
	// rr makes requests and responses of message bytes; without it, one connection streams.
	rr      bool
	message int
	flows   int
	// yield gives way to the other goroutines after every so many writes, if not 0.
	yield int
	// nagle gathers writes while data is not acknowledged.
	nagle bool
	// cork sends full segments only.
	cork bool
}

var tests = []test{
	{name: "stream-gso", nic: gso, message: readMax, flows: 1},
	{name: "stream-jumbo", nic: jumbo, message: readMax, flows: 1},
	{name: "stream-mtu", nic: mtu, message: readMax, flows: 1},
	{name: "stream-mtu-software", nic: mtuSoftware, message: readMax, flows: 1},
	{name: "rr-1", nic: plain, rr: true, message: 4096, flows: 1},
	{name: "rr-1-gso", nic: gso, rr: true, message: 4096, flows: 1},
	{name: "rr-200", nic: plain, rr: true, message: 4096, flows: 200},
	{name: "rr-200-gso", nic: gso, rr: true, message: 4096, flows: 200},
	{name: "write-128", nic: jumbo, message: 128, flows: 1},
	{name: "write-128-gso", nic: gso, message: 128, flows: 1},
	{name: "write-128-moderated", nic: jumbo, message: 128, flows: 1, yield: 256},
	{name: "write-128-moderated-nagle", nic: jumbo, message: 128, flows: 1, yield: 256, nagle: true},
	{name: "write-128-full", nic: jumbo, message: 128, flows: 1, cork: true},
	{name: "write-128-full-gso", nic: gso, message: 128, flows: 1, cork: true},
}

// check ends the program with the reason why something could not be done.
func check(what string, err tcpip.Error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", what, err)
		os.Exit(1)
	}
}

// run is a test under way.
type run struct {
	test
	stop     atomic.Bool
	received atomic.Int64
	answered atomic.Int64
}

// result is what a test has measured.
type result struct {
	Name         string   `json:"name"`
	Test         string   `json:"test"`
	Flows        int      `json:"flows"`
	Seconds      float64  `json:"seconds"`
	Bytes        int64    `json:"bytes"`
	Throughput   float64  `json:"throughput_bps"`
	Transactions *float64 `json:"transactions_per_s"`
	Buffer       int      `json:"buffer"`
	Retransmits  uint64   `json:"retransmits"`
}

// measure runs a test once.
func measure(t test, buffer int, duration time.Duration) result {
	left, right := newLink(t.nic)
	clientStack := newStack(left, tcpip.AddrFrom4([4]byte{10, 0, 0, 1}), buffer, t.nic.gro)
	to := tcpip.FullAddress{Addr: tcpip.AddrFrom4([4]byte{10, 0, 0, 2}), Port: 5211}
	serverStack := newStack(right, to.Addr, buffer, t.nic.gro)
	listening := listen(serverStack, to.Port)
	r := &run{test: t}
	clients, servers := make([]*conn, t.flows), make([]*conn, t.flows)
	for i := range clients {
		clients[i] = dial(clientStack, to)
		servers[i] = listening.accept()
		clients[i].ep.SocketOptions().SetDelayOption(t.nagle)
		clients[i].ep.SocketOptions().SetCorkOption(t.cork)
	}
	started := time.Now()
	for i := range clients {
		if t.rr {
			go respond(servers[i], make([]byte, t.message), make([]byte, t.message))
			go r.request(clients[i])
		} else {
			go drain(servers[i], &r.received)
			go r.send(clients[i])
		}
	}
	time.Sleep(duration)
	bytes, answered, seconds := r.received.Load(), r.answered.Load(), time.Since(started).Seconds()
	r.stop.Store(true)
	out := result{Name: t.name, Test: "stream", Flows: t.flows, Seconds: seconds, Buffer: buffer}
	if t.rr {
		rate := float64(answered) / seconds
		out.Test, out.Transactions, bytes = "rr", &rate, answered*2*int64(t.message)
	}
	out.Bytes, out.Throughput = bytes, float64(bytes)*8/seconds
	out.Retransmits = clientStack.Stats().TCP.Retransmits.Value() + serverStack.Stats().TCP.Retransmits.Value()
	for i := range clients {
		clients[i].ep.Abort()
		servers[i].ep.Abort()
	}
	clientStack.Close()
	serverStack.Close()
	return out
}

func (r *run) send(c *conn) {
	data := make([]byte, r.message)
	for n := 1; !r.stop.Load(); n++ {
		if _, err := c.Write(data); err != nil {
			return
		}
		if r.yield > 0 && n%r.yield == 0 {
			runtime.Gosched()
		}
	}
}

func (r *run) request(c *conn) {
	data := make([]byte, r.message)
	for !r.stop.Load() {
		if _, err := c.Write(data); err != nil {
			return
		}
		if _, err := io.ReadFull(c, data); err != nil {
			return
		}
		r.answered.Add(1)
	}
}

// bestBuffer tries each size of the socket buffers.
func bestBuffer(t test) int {
	sizes := []int{128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 8 << 20}
	if t.rr {
		sizes = []int{16 << 10, 64 << 10, 256 << 10}
	}
	best, chosen := 0.0, 0
	for _, size := range sizes {
		if got := measure(t, size, 150*time.Millisecond).Throughput; got >= best {
			best, chosen = got, size
		}
	}
	return chosen
}

func main() {
	args := os.Args[1:]
	if len(args) == 5 && args[0] == "serve" {
		// Any number of flows is served.
		buffer, err := strconv.Atoi(args[3])
		if err == nil {
			err = serve(args[1], args[2], buffer)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Ours has one thread, too.
	runtime.GOMAXPROCS(1)
	seconds := 2.0
	if len(args) > 0 {
		var err error
		if seconds, err = strconv.ParseFloat(args[0], 64); err != nil {
			fmt.Fprint(os.Stderr, usage)
			os.Exit(2)
		}
		args = args[1:]
	}
	for _, name := range args {
		if !slices.ContainsFunc(tests, func(t test) bool { return t.name == name }) {
			fmt.Fprintf(os.Stderr, "no test is called `%s`; run without names to see all\n", name)
			os.Exit(2)
		}
	}
	for _, t := range tests {
		if len(args) == 0 || slices.Contains(args, t.name) {
			out := measure(t, bestBuffer(t), time.Duration(seconds*float64(time.Second)))
			line, _ := json.Marshal(out)
			fmt.Println(string(line))
		}
	}
}

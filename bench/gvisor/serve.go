package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/link/tun"
)

// Roles of the server, in the preamble of each connection (crates/cli/src/preamble.rs).
const (
	roleSink     = 1
	roleSource   = 2
	roleRr       = 3
	roleCounters = 4
)

// serve attaches to a TUN that exists, and serves `fullsend perf --connect` until the program ends.
func serve(name, address string, buffer int) error {
	// With 1, rr with one flow is less than half as fast.
	runtime.GOMAXPROCS(2)
	on, err := netip.ParseAddr(address)
	if err != nil || !on.Is4() {
		return fmt.Errorf("`%s` is not an IPv4 address; write e.g. 10.0.0.2", address)
	}
	fd, err := tun.Open(name)
	if err != nil {
		return fmt.Errorf("cannot open the TUN %s: %w", name, err)
	}
	// GRO verifies the checksums and does not update the IP header's, so the stack must not verify
	// them again. With one processor the reader would deliver and flush GRO after each packet.
	link, err := fdbased.New(&fdbased.Options{
		FDs: []int{fd}, MTU: 1500, GRO: true, RXChecksumOffload: true, ProcessorsPerChannel: 2,
	})
	if err != nil {
		return err
	}
	listening := listen(newStack(link, tcpip.AddrFrom4(on.As4()), buffer, false), 5211)
	fmt.Println("listening")
	for {
		c := listening.accept()
		go func() {
			if err := answer(c); err != nil && err != io.EOF {
				fmt.Println(err)
			}
			c.ep.Close()
		}()
	}
}

// answer serves one connection to its end.
func answer(c *conn) error {
	var preamble [36]byte
	if _, err := io.ReadFull(c, preamble[:]); err != nil {
		return err
	}
	first, second := binary.BigEndian.Uint32(preamble[8:]), binary.BigEndian.Uint32(preamble[12:])
	switch role := preamble[4]; role {
	case roleSink:
		return sink(c)
	case roleSource:
		return source(c, time.Duration(first)*time.Millisecond, int(second))
	case roleRr:
		return respond(c, make([]byte, first), make([]byte, second))
	case roleCounters:
		return counters(c)
	default:
		return fmt.Errorf("test number %d is not known", role)
	}
}

// sink reads to the end of the stream, and answers with the bytes received.
func sink(c *conn) error {
	var received atomic.Int64
	if err := drain(c, &received); err != io.EOF {
		return err
	}
	var receipt [16]byte
	binary.BigEndian.PutUint64(receipt[:], uint64(received.Load()))
	// No offset of wrong data.
	binary.BigEndian.PutUint64(receipt[8:], 1<<64-1)
	_, err := c.Write(receipt[:])
	return err
}

// source sends messages for some time, ends the stream and waits for the client's end.
func source(c *conn, duration time.Duration, message int) error {
	data := make([]byte, message)
	for until := time.Now().Add(duration); time.Now().Before(until); {
		if _, err := c.Write(data); err != nil {
			return err
		}
	}
	if err := c.ep.Shutdown(tcpip.ShutdownWrite); err != nil {
		return fmt.Errorf("shutdown: %s", err)
	}
	_, err := c.Read(data[:1])
	return err
}

// counters answers each request for counters with none.
func counters(c *conn) error {
	var request [1]byte
	for {
		if _, err := c.Read(request[:]); err != nil {
			return err
		}
		if _, err := c.Write([]byte{0, 0, 0, 2, '{', '}'}); err != nil {
			return err
		}
	}
}

package main

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// conn is one connection, used by one goroutine at a time. It blocks as gonet's TCPConn does, but
// has no deadlines and registers with the wait queue only once, so it is faster.
type conn struct {
	ep                 tcpip.Endpoint
	readable, writable chan struct{}
	source             bytes.Reader
}

func newConn(ep tcpip.Endpoint, queue *waiter.Queue) *conn {
	in, readable := waiter.NewChannelEntry(waiter.ReadableEvents)
	out, writable := waiter.NewChannelEntry(waiter.WritableEvents)
	queue.EventRegister(&in)
	queue.EventRegister(&out)
	return &conn{ep: ep, readable: readable, writable: writable}
}

// Read reads at most len(into) bytes, and blocks until there is one.
func (c *conn) Read(into []byte) (int, error) {
	for {
		to := tcpip.SliceWriter(into)
		result, err := c.ep.Read(&to, tcpip.ReadOptions{})
		switch err.(type) {
		case nil:
			return result.Count, nil
		case *tcpip.ErrWouldBlock:
			<-c.readable
		case *tcpip.ErrClosedForReceive:
			return 0, io.EOF
		default:
			return 0, errors.New(err.String())
		}
	}
}

// Write writes all of data.
func (c *conn) Write(data []byte) (int, error) {
	sent := 0
	for sent < len(data) {
		c.source.Reset(data[sent:])
		n, err := c.ep.Write(&c.source, tcpip.WriteOptions{})
		sent += int(n)
		switch err.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			<-c.writable
		default:
			return sent, errors.New(err.String())
		}
	}
	return sent, nil
}

// drain reads to the end of the stream, and adds to received; the end is io.EOF.
func drain(c *conn, received *atomic.Int64) error {
	data := make([]byte, readMax)
	for {
		n, err := c.Read(data)
		if err != nil {
			return err
		}
		received.Add(int64(n))
	}
}

// respond answers each request.
func respond(c *conn, request, response []byte) error {
	for {
		if _, err := io.ReadFull(c, request); err != nil {
			return err
		}
		if _, err := c.Write(response); err != nil {
			return err
		}
	}
}

// listener accepts connections.
type listener struct {
	ep       tcpip.Endpoint
	readable chan struct{}
}

func listen(s *stack.Stack, port uint16) *listener {
	queue := &waiter.Queue{}
	ep, err := s.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, queue)
	check("a socket", err)
	check("bind", ep.Bind(tcpip.FullAddress{Port: port}))
	check("listen", ep.Listen(1024))
	entry, readable := waiter.NewChannelEntry(waiter.ReadableEvents)
	queue.EventRegister(&entry)
	return &listener{ep, readable}
}

func (l *listener) accept() *conn {
	for {
		ep, queue, err := l.ep.Accept(nil)
		if _, none := err.(*tcpip.ErrWouldBlock); none {
			<-l.readable
			continue
		}
		check("accept", err)
		return newConn(ep, queue)
	}
}

func dial(s *stack.Stack, to tcpip.FullAddress) *conn {
	queue := &waiter.Queue{}
	ep, err := s.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, queue)
	check("a socket", err)
	c := newConn(ep, queue)
	err = ep.Connect(to)
	if _, started := err.(*tcpip.ErrConnectStarted); started {
		<-c.writable
		err = ep.LastError()
	}
	check("connect", err)
	return c
}

package main

import (
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/pipe"
	"gvisor.dev/gvisor/pkg/tcpip/link/qdisc/fifo"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/stack/gro"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// nic is what the link's network cards do.
type nic struct {
	mtu uint32
	// checksums are computed and verified.
	checksums bool
	gso       stack.SupportedGSO
	// gro coalesces what arrives. The sender's packets then pass through a queue, which makes batches.
	gro bool
}

var (
	// gso passes super-segments whole, without checksums.
	gso = nic{mtu: 1500, gso: stack.HostGSOSupported}
	// jumbo has the largest MTU, without checksums.
	jumbo = nic{mtu: 65535}
	// mtu has no offload at all.
	mtu = nic{mtu: 1500, checksums: true}
	// mtuSoftware has gVisor's own segmentation and coalescing.
	mtuSoftware = nic{mtu: 1500, checksums: true, gso: stack.GVisorGSOSupported, gro: true}
	// plain segments in TCP, without checksums.
	plain = nic{mtu: 1500}
)

// end is one end of an in-process link: gVisor's pipe with the offloads of a nic.
type end struct {
	*pipe.Endpoint
	nic  nic
	peer *end
	in   coalescer
}

// newLink returns both ends of a new link.
func newLink(n nic) (*end, *end) {
	a, b := pipe.New("", "", n.mtu)
	left, right := &end{Endpoint: a, nic: n}, &end{Endpoint: b, nic: n}
	left.peer, right.peer = right, left
	left.in.gro.Init(true)
	right.in.gro.Init(true)
	return left, right
}

func (e *end) Attach(to stack.NetworkDispatcher) {
	if to == nil || !e.nic.gro {
		e.Endpoint.Attach(to)
		return
	}
	e.in.NetworkDispatcher = to
	e.in.gro.Dispatcher = to
	e.Endpoint.Attach(&e.in)
}

func (e *end) Capabilities() stack.LinkEndpointCapabilities {
	switch {
	case e.nic.gro:
		// GRO verifies the checksums, and does not update the IP header's.
		return stack.CapabilityRXChecksumOffload
	case e.nic.checksums:
		return stack.CapabilityNone
	}
	return stack.CapabilityTXChecksumOffload | stack.CapabilityRXChecksumOffload
}

func (e *end) GSOMaxSize() uint32 { return stack.GVisorGSOMaxSize }

func (e *end) SupportedGSO() stack.SupportedGSO { return e.nic.gso }

func (e *end) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	n, err := e.Endpoint.WritePackets(packets)
	if e.nic.gro {
		e.peer.in.flush()
	}
	return n, err
}

// coalescer is gVisor's GRO between the link and the stack.
type coalescer struct {
	stack.NetworkDispatcher
	mu  sync.Mutex
	gro gro.GRO
}

func (c *coalescer) DeliverNetworkPacket(protocol tcpip.NetworkProtocolNumber, packet *stack.PacketBuffer) {
	packet.NetworkProtocolNumber = protocol
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gro.Enqueue(packet)
}

func (c *coalescer) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gro.Flush()
}

// newStack returns a stack with one network card on a link, CUBIC, SACK, and socket buffers of so
// many bytes.
func newStack(link stack.LinkEndpoint, address tcpip.Address, buffer int, queued bool) *stack.Stack {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	cubic, sack := tcpip.CongestionControlOption("cubic"), tcpip.TCPSACKEnabled(true)
	for _, option := range []tcpip.SettableTransportProtocolOption{
		&cubic, &sack,
		&tcpip.TCPSendBufferSizeRangeOption{Min: 1, Default: buffer, Max: buffer},
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: 1, Default: buffer, Max: buffer},
	} {
		check("a TCP option", s.SetTransportProtocolOption(tcp.ProtocolNumber, option))
	}
	options := stack.NICOptions{}
	if queued {
		options.QDisc = fifo.New(link, 1, 1000)
	}
	check("the NIC", s.CreateNICWithOptions(1, link, options))
	check("the address", s.AddProtocolAddress(1, tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: address, PrefixLen: 24},
	}, stack.AddressProperties{}))
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	return s
}

package target

import (
	"encoding/binary"
	"fmt"
)

// mysqlKeepMax is how much of a packet is kept: enough of an error's text, and of
// what ends a result.
const mysqlKeepMax = 512

// moreResults is the server's flag that another result follows.
const moreResults = 0x0008

// Where a reply stands.
const (
	mysqlAtStart   = iota // OK, an error, or the number of columns
	mysqlInColumns        // so many packets still describe columns
	mysqlInRows           // rows, up to an end or an error
)

// mysqlReply follows the packets of the answer to an execute, at whatever places
// their bytes are cut. Rows are counted by nobody: only their end matters.
type mysqlReply struct {
	session   *mysqlSession
	header    [4]byte
	have      int    // bytes of header that are there
	rest      int    // bytes of the packet still to come
	continued bool   // the packet goes on one that was as long as a packet can be
	kept      []byte // the packet's beginning
	state     int
	columns   int // packets still to come in mysqlInColumns
	failure   string
	ready     bool
}

func (r *mysqlReply) reset(session *mysqlSession) {
	*r = mysqlReply{session: session, kept: r.kept[:0]}
}

func (r *mysqlReply) feed(b []byte) (done bool, err error) {
	for len(b) > 0 {
		if r.ready {
			return false, fmt.Errorf("%w: %d bytes behind its end", errMalformed, len(b))
		}
		if r.have < len(r.header) {
			n := copy(r.header[r.have:], b)
			r.have += n
			b = b[n:]
			if r.have < len(r.header) {
				break
			}
			r.rest = uint24(r.header[:])
		}
		n := min(r.rest, len(b))
		if keep := min(n, mysqlKeepMax-len(r.kept)); keep > 0 {
			r.kept = append(r.kept, b[:keep]...)
		}
		b = b[n:]
		if r.rest -= n; r.rest == 0 {
			if err := r.end(); err != nil {
				return false, err
			}
		}
	}
	return r.ready, nil
}

// end takes a whole packet.
func (r *mysqlReply) end() error {
	packet, length, continued := r.kept, uint24(r.header[:]), r.continued
	r.kept, r.have, r.continued = r.kept[:0], 0, length == mysqlPacketMax
	if continued {
		return nil
	}
	if length == 0 {
		return fmt.Errorf("%w: an empty packet", errMalformed)
	}
	if packet[0] == 0xff {
		r.failure, r.ready = mysqlFailure(packet), true
		return nil
	}
	switch r.state {
	case mysqlInColumns:
		if r.columns--; r.columns == 0 {
			r.state = mysqlInRows
		}
		return nil
	case mysqlInRows:
		if packet[0] != 0xfe || length == mysqlPacketMax {
			return nil
		}
		if !r.session.plainEOF {
			return r.status(packet, 3) // behind the warnings
		}
		return r.ok(packet)
	}
	if packet[0] == 0 {
		return r.ok(packet)
	}
	return r.begin(packet)
}

// begin takes the packet that begins a result.
func (r *mysqlReply) begin(packet []byte) error {
	columns, size, ok := lengthEncoded(packet)
	if !ok || columns == 0 || columns > 1<<16 {
		return fmt.Errorf("%w: a result of no columns", errMalformed)
	}
	r.columns = int(columns)
	if r.session.cachedColumns {
		if len(packet) <= size {
			return fmt.Errorf("%w: a result that does not say whether its columns follow", errMalformed)
		}
		if packet[size] == 0 {
			r.columns = 0
		}
	}
	if !r.session.plainEOF {
		r.columns++ // the EOF packet
	}
	r.state = mysqlInRows
	if r.columns > 0 {
		r.state = mysqlInColumns
	}
	return nil
}

// ok takes the packet that ends a result.
func (r *mysqlReply) ok(packet []byte) error {
	at := 1
	for range 2 { // rows changed, last id
		_, size, ok := lengthEncoded(packet[min(at, len(packet)):])
		if !ok {
			return fmt.Errorf("%w: a packet cut short", errMalformed)
		}
		at += size
	}
	return r.status(packet, at)
}

func (r *mysqlReply) status(packet []byte, at int) error {
	if len(packet) < at+2 {
		return fmt.Errorf("%w: a packet cut short", errMalformed)
	}
	if binary.LittleEndian.Uint16(packet[at:])&moreResults == 0 {
		r.ready = true
	}
	r.state = mysqlAtStart
	return nil
}

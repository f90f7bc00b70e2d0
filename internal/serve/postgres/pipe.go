package postgres

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"golang.org/x/sys/unix"

	"spillway/internal/serve/feed"
)

// pipe is a connection of an event loop. Executions follow each other without waiting for answers; what is sent at once ends with one
// Sync, and is one transaction for the server.
type pipe struct {
	of         *pipes
	giveBack   func() // to the pool and the gate
	conn       *pgconn.PgConn
	fd         int
	statements map[*statement]*prepared
	sent       []*job // not answered yet
	open       int    // of sent, without a Sync
	syncs      int    // that are not answered yet
	out, rest  []byte // to be sent, and the begin of a message that has come
	usedAt     time.Time
	openedAt   time.Time
	askedAt    time.Time // for a cancellation
	leaving    bool      // nothing more is sent
	solo       bool      // what is under way is alone
	stuck      bool      // and takes long
	cancels    bool      // a request to cancel it is under way
	spoilt     bool      // the connection is to be closed then
	dead       bool      // it is of no use any more
}

// serves reports whether the connection can run executions of a flow.
func (c *pipe) serves(f *flow) bool {
	return !c.leaving && !c.stuck && c.statements[f.statement] != nil && !f.statement.harmful()
}

// put adds an execution to what is sent next.
func (c *pipe) put(j *job) {
	if j.lone || j.solo {
		c.sync()
	}
	args, err := j.flow.source.arguments(j.read.Range)
	if err != nil {
		c.of.finish(j, feed.ErrElsewhere)
		return
	}
	c.out = appendExecute(c.out, j.flow.statement.name, args)
	if len(c.sent) == 0 {
		c.usedAt = c.of.loop.Now()
	}
	j.sent = true
	c.sent = append(c.sent, j)
	c.open++
	c.solo, c.stuck = j.solo || j.flow.depth() == 1, j.solo
	if j.lone || j.solo {
		c.sync()
	}
}

func (c *pipe) sync() {
	if c.open > 0 {
		c.sent[len(c.sent)-1].last = true
		c.out = append(c.out, 'S', 0, 0, 0, 4)
		c.open = 0
		c.syncs++
	}
}

// send sends what was put.
func (c *pipe) send() {
	c.sync()
	if len(c.out) == 0 || c.dead {
		return
	}
	if at := c.of.loop.Now().Add(lookEvery); c.of.alarm.At.IsZero() || at.Before(c.of.alarm.At) {
		c.of.alarm.At = at
	}
	n, err := unix.Write(c.fd, c.out)
	if n > 0 {
		c.out = c.out[:copy(c.out, c.out[n:])] // the rest is sent in a later round
	}
	if err != nil && err != unix.EAGAIN && err != unix.EINTR {
		c.fail()
	}
}

// Ready implements front.Watcher.
func (c *pipe) Ready() {
	p := c.of
	n, err := unix.Read(c.fd, p.in)
	switch {
	case c.dead || err == unix.EAGAIN || err == unix.EINTR:
		return
	case n == 0 || err != nil:
		c.fail()
		p.settle() // before any of them is dropped
		return
	}
	data := p.in[:n]
	if len(c.rest) > 0 {
		c.rest = append(c.rest, data...)
		data = c.rest
	}
	before := len(p.done)
	if rest := c.parse(data); len(rest) == 0 || &rest[0] != &data[0] || len(c.rest) == 0 {
		c.rest = append(c.rest[:0], rest...)
	} // otherwise it is there
	if n := len(p.done) - before; n > 0 {
		now := time.Now()
		took := now.Sub(c.usedAt) / time.Duration(n)
		c.usedAt = now
		p.done[before].flow.observe(took)
		for _, done := range p.done[before:] {
			done.read.Took = took
		}
		p.settle()
	}
	if len(c.sent) == 0 {
		c.solo, c.stuck = false, false
	}
	p.plan()
}

// parse takes the whole messages of data, and returns the rest.
func (c *pipe) parse(data []byte) (rest []byte) {
	const header = 5
	for len(data) >= header {
		size := 1 + int(binary.BigEndian.Uint32(data[1:]))
		if size < header {
			c.fail()
			return nil
		}
		if size > len(data) {
			if size > rowMax && len(c.sent) > 0 { // it is read elsewhere
				c.sent[0].flow.large = largeFor
				c.fail()
				return nil
			}
			break
		}
		if !c.take(data[0], data[header:size]) {
			c.fail()
			return nil
		}
		data = data[size:]
	}
	return data
}

// take takes a message. It returns false if it is not expected.
func (c *pipe) take(kind byte, body []byte) bool {
	switch kind {
	case '2', 'N', 'A': // bound, a notice, a notification
		return true
	case 'Z':
		c.syncs--
		return len(body) == 1 && body[0] == 'I'
	case 'S': // a setting has changed
		c.spoilt, c.leaving = true, true
		return true
	case 'D', 'C', 'I', 'E':
	default:
		return false
	}
	if len(c.sent) == 0 {
		return false // such as a shutdown
	}
	switch kind {
	case 'D':
		return c.takeRow(body)
	case 'E':
		ends := 0
		for _, j := range c.sent {
			if j.last {
				ends++
			}
		}
		return ends == c.syncs && c.refused(body) // otherwise it is the error of a transaction's end
	}
	var err error
	if j := c.sent[0]; j.read != nil {
		err = j.read.End(&j.flow.source.nulls)
	}
	c.pop(err)
	return true
}

// pop removes the first execution.
func (c *pipe) pop(err error) {
	j := c.sent[0]
	n := copy(c.sent, c.sent[1:])
	c.sent[n] = nil
	c.sent = c.sent[:n]
	c.of.finish(j, err)
}

// takeRow takes a row of the first execution.
func (c *pipe) takeRow(body []byte) bool {
	j := c.sent[0]
	if j.read == nil {
		return true
	}
	r := &c.of.row
	r.columns = c.statements[j.flow.statement].columns
	if len(body) < 2 || int(binary.BigEndian.Uint16(body)) != len(r.columns.forms) {
		return false
	}
	r.values, body = r.values[:0], body[2:]
	for range r.columns.forms {
		if len(body) < 4 {
			return false
		}
		size := int(int32(binary.BigEndian.Uint32(body)))
		if body = body[4:]; size < 0 {
			r.values = append(r.values, nil)
			continue
		}
		if size > len(body) {
			return false
		}
		r.values = append(r.values, body[:size:size])
		body = body[size:]
	}
	if err := j.read.Handler().Row(r); err != nil {
		j.flow.note(j.read)
		c.of.done = append(c.of.done, finished{*j, j.flow.source.collected(j.read, err)})
		j.read = nil // its other rows do not matter
	}
	return true
}

// refused takes the error of the first execution. The server skips those that follow up to the next Sync: they run again, each with
// a Sync of its own.
func (c *pipe) refused(body []byte) bool {
	var message pgproto3.ErrorResponse
	if message.Decode(body) != nil {
		return false
	}
	refusal := pgconn.ErrorResponseToPgError(&message)
	j := c.sent[0]
	last, f := j.last, j.flow
	err := feed.ErrElsewhere
	switch {
	case j.read == nil:
	case refusal.SeverityUnlocalized == "ERROR" && !c.cancels && !ofSession(refusal.Code):
		if !f.source.unclear(refusal) {
			err = f.source.collected(j.read, f.source.judged(j.read.Range, refusal, refusal))
		}
	default: // the statement may be out of date, or the server stops
		c.spoilt, c.leaving = true, true
	}
	c.pop(err)
	skipped := 0
	for ; !last && skipped < len(c.sent); skipped++ {
		last = c.sent[skipped].last
	}
	c.again(c.sent[:skipped], false)
	for range skipped {
		c.pop(nil)
	}
	return true
}

// ofSession reports whether an error may be due to the session and not to the statement.
func ofSession(code string) bool {
	return code == stateFeatureNotSupported || code == stateNoPreparedStatement || code == stateDuplicateStatement ||
		code == stateProtocolViolation
}

// again has executions run once more, before others and each with a Sync of its own.
func (c *pipe) again(jobs []*job, moved bool) {
	for _, j := range slices.Backward(jobs) {
		if j.read == nil {
			continue
		}
		own := *j
		own.read.Handler().Start() // some may have come
		if own.last, own.lone = false, true; moved && !own.moved {
			own.moved = true
			own.flow.moved++
		}
		j.read, j.moved = nil, false
		own.flow.pending = slices.Insert(own.flow.pending, 0, c.of.newJob(own))
	}
	c.of.plan()
}

// late handles that no answer has come for long. What follows the transaction under way runs again on another connection. If it is not
// known which of its executions is slow, because their answers come together, all of them do, unless some do so already.
func (c *pipe) late() {
	head, harmless := c.sent[0], !c.sent[0].flow.statement.harmful()
	c.stuck = true
	group := 1 + slices.IndexFunc(c.sent, func(j *job) bool { return j.last })
	switch {
	case head.last && head.read != nil:
		head.flow.note(head.read)
		var err error
		switch {
		case head.read.Unwanted:
			err = context.Canceled
		case c.of.loop.Now().Sub(c.usedAt) > c.of.db.bounds.StatementTimeout+clientGrace: // a pooler may have refused the setting
			err = context.DeadlineExceeded
		}
		if err != nil {
			c.of.done = append(c.of.done, finished{*head, head.flow.source.collected(head.read, err)})
			head.read = nil
		}
	case !head.last && harmless && head.flow.moved == 0:
		c.again(c.sent[:group], true)
	}
	if harmless {
		c.again(c.sent[group:], true)
	}
	if !slices.ContainsFunc(c.sent[:group], func(j *job) bool { return j.read != nil }) {
		c.cancel()
	}
}

// appendExecute appends the messages that run a prepared statement.
func appendExecute(dst []byte, name string, args [][]byte) []byte {
	begin := len(dst)
	dst = append(append(append(dst, 'B', 0, 0, 0, 0, 0), name...), 0, 0, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(args)))
	for _, arg := range args {
		if arg == nil {
			dst = append(dst, 0xff, 0xff, 0xff, 0xff)
		} else {
			dst = append(binary.BigEndian.AppendUint32(dst, uint32(len(arg))), arg...)
		}
	}
	dst = append(dst, 0, 0)
	binary.BigEndian.PutUint32(dst[begin+1:], uint32(len(dst)-begin-1))
	return append(dst, 'E', 0, 0, 0, 9, 0, 0, 0, 0, 0)
}

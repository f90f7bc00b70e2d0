package target

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a Redis answer.
const (
	redisLineMax  = 64 << 10 // a simple string, an error or a length
	redisBulkMax  = 512 << 20
	redisItemsMax = 1 << 20 // elements of one answer, nested ones included
)

// command is one Redis command. Its words may contain values.
type command struct {
	name  string // given by the user; "": none
	text  string // as written, without the name
	words []Template
	kind  Kind
}

// parseCommand reads [name=NAME] and words between blanks. A word may be quoted
// with single or double quotes.
func parseCommand(text string) (command, error) {
	name, text, err := cutName(text)
	if err != nil {
		return command{}, fmt.Errorf("command: %w", err)
	}
	words, err := splitWords(text)
	if err != nil {
		return command{}, fmt.Errorf("command %q: %w", text, err)
	}
	if len(words) == 0 {
		return command{}, errors.New("--command is empty; write 'GET key:{random(1,100)}'")
	}
	c := command{name: name, text: text, kind: commandKind(words[0])}
	for _, word := range words {
		t, err := ParseTemplate(word)
		if err != nil {
			return command{}, fmt.Errorf("command %q: %w", text, err)
		}
		c.words = append(c.words, t)
	}
	return c, nil
}

func splitWords(text string) ([]string, error) {
	var words []string
	for {
		text = strings.TrimLeft(text, " \t")
		if text == "" {
			return words, nil
		}
		var word strings.Builder
		for text != "" && text[0] != ' ' && text[0] != '\t' {
			quote := text[0]
			if quote != '\'' && quote != '"' {
				word.WriteByte(quote)
				text = text[1:]
				continue
			}
			quoted, rest, found := strings.Cut(text[1:], string(quote))
			if !found {
				return nil, fmt.Errorf("missing closing %c", quote)
			}
			word.WriteString(quoted)
			text = rest
		}
		words = append(words, word.String())
	}
}

// commandKind classifies the common commands. All others are Other.
func commandKind(name string) Kind {
	reads := []string{
		"BITCOUNT", "EXISTS", "GEOSEARCH", "GET", "GETBIT", "GETRANGE", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HVALS", "LINDEX",
		"LLEN", "LRANGE", "MGET", "PFCOUNT", "PTTL", "SCARD", "SISMEMBER", "SMEMBERS", "STRLEN", "TTL", "TYPE", "XLEN", "XRANGE", "XREVRANGE",
		"ZCARD",
		"ZCOUNT", "ZRANGE", "ZRANGEBYSCORE", "ZRANK", "ZREVRANGE", "ZSCORE",
	}
	writes := []string{
		"APPEND", "DECR", "DECRBY", "DEL", "EXPIRE", "GETDEL", "GETSET", "HDEL", "HINCRBY", "HMSET", "HSET", "HSETNX", "INCR", "INCRBY", "LPOP",
		"LPUSH",
		"LREM", "LSET", "LTRIM", "MSET", "PEXPIRE", "PFADD", "PSETEX", "RPOP", "RPUSH", "SADD", "SET", "SETBIT", "SETEX", "SETNX", "SETRANGE",
		"SPOP", "SREM",
		"UNLINK", "XADD", "XDEL", "XTRIM", "ZADD", "ZINCRBY", "ZPOPMAX", "ZPOPMIN", "ZREM",
	}
	name = strings.ToUpper(name)
	switch {
	case slices.Contains(reads, name):
		return Read
	case slices.Contains(writes, name):
		return Write
	}
	return Other
}

// append appends the command to b as an array of bulk strings. word is memory for
// building one word; it is returned for reuse.
func (c *command) append(b, word []byte, s *Source) (out, memory []byte) {
	b = appendRedisHeader(b, '*', len(c.words))
	for i := range c.words {
		word = c.words[i].Append(word[:0], s)
		b = appendRedisHeader(b, '$', len(word))
		b = append(b, word...)
		b = append(b, '\r', '\n')
	}
	return b, word
}

func appendRedisHeader(b []byte, mark byte, n int) []byte {
	b = append(b, mark)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '\r', '\n')
}

// appendWords appends a command of constant words to b.
func appendWords(b []byte, words ...string) []byte {
	b = appendRedisHeader(b, '*', len(words))
	for _, word := range words {
		b = appendRedisHeader(b, '$', len(word))
		b = append(b, word...)
		b = append(b, '\r', '\n')
	}
	return b
}

// errRedis is wrapped by an error answer of Redis.
var errRedis = fmt.Errorf("%w: Redis error", errStatus)

// redisReply parses RESP2 answers up to their end. The bytes may be split
// anywhere. It stores only the text of an error.
type redisReply struct {
	line     []byte
	pending  int   // elements still to come
	skip     int64 // bytes of a bulk string still to come, with its line end
	items    int
	failure  string // text of the first error in it
	failedAt int    // number of its element, from 1
}

func (r *redisReply) reset(answers int) {
	*r = redisReply{line: r.line[:0], pending: answers}
}

func (r *redisReply) feed(b []byte) (done bool, err error) {
	for len(b) > 0 {
		if r.skip > 0 {
			n := min(r.skip, int64(len(b)))
			r.skip -= n
			b = b[n:]
			continue
		}
		if r.pending == 0 {
			return false, fmt.Errorf("%w: %d bytes after its end", errMalformed, len(b))
		}
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			r.line = append(r.line, b...)
			b = nil
		} else {
			r.line = append(r.line, b[:end]...)
			b = b[end+1:]
		}
		if len(r.line) > redisLineMax {
			return false, fmt.Errorf("%w: line over %d bytes", errMalformed, redisLineMax)
		}
		if end >= 0 {
			if err := r.take(r.line); err != nil {
				return false, err
			}
			r.line = r.line[:0]
		}
	}
	return r.pending == 0 && r.skip == 0, nil
}

// take parses the first line of an element.
func (r *redisReply) take(line []byte) error {
	n := len(line)
	if n < 2 || line[n-1] != '\r' {
		return fmt.Errorf("%w: line %.40q", errMalformed, line)
	}
	r.items++
	if r.items > redisItemsMax {
		return fmt.Errorf("%w: more than %d elements", errMalformed, redisItemsMax)
	}
	r.pending--
	rest := line[1 : n-1]
	switch line[0] {
	case '+', ':':
		return nil
	case '-':
		if r.failure == "" {
			r.failure, r.failedAt = string(rest), r.items
		}
		return nil
	case '$':
		return r.takeLength(rest, redisBulkMax, func(n int64) { r.skip = n + 2 })
	case '*':
		return r.takeLength(rest, redisItemsMax, func(n int64) { r.pending += int(n) })
	}
	return fmt.Errorf("%w: line %.40q", errMalformed, line)
}

func (r *redisReply) takeLength(digits []byte, limit int64, take func(int64)) error {
	if string(digits) == "-1" {
		return nil
	}
	n, ok := parseNumber(digits, 10)
	if !ok || n > limit {
		return fmt.Errorf("%w: length %.40q", errMalformed, digits)
	}
	take(n)
	return nil
}

// redisProtocol is RESP2 on one connection.
type redisProtocol struct {
	commands     []command
	setup        []byte // AUTH and SELECT, sent with the first command
	setupReplies int
	preceding    int // answers to setup before the answer to the command
	source       *Source
	scratch      *scratch
	kind         Kind
	reply        redisReply
}

func (p *redisProtocol) request(number int, first, _ bool) []byte {
	p.source.Next()
	c := &p.commands[number]
	p.kind = c.kind
	out := p.scratch.request[:0]
	p.preceding = 0
	if first {
		out = append(out, p.setup...)
		p.preceding = p.setupReplies
	}
	p.reply.reset(p.preceding + 1)
	p.scratch.request, p.scratch.word = c.append(out, p.scratch.word, p.source)
	return p.scratch.request
}

func (p *redisProtocol) feed(b []byte) (bool, error) {
	if len(b) == 0 {
		return false, errCutShort
	}
	return p.reply.feed(b)
}

func (p *redisProtocol) answer(o *Outcome) bool {
	o.Kind = p.kind
	if p.reply.failure != "" {
		o.Err = fmt.Errorf("%w: %.100s", errRedis, p.reply.failure)
	}
	// Without AUTH or SELECT, the next commands would go to another user's data or another database.
	return p.reply.failure == "" || p.reply.failedAt > p.preceding
}

// logIn sends AUTH and SELECT and returns the error that the server answers.
func (c *streamConn) logIn(ctx context.Context, setup []byte, replies int) error {
	if deadline, ok := ctx.Deadline(); ok {
		c.conn.SetDeadline(deadline)
	}
	if _, err := c.conn.Write(setup); err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	var reply redisReply
	reply.reset(replies)
	for {
		n, err := c.conn.Read(c.buffer)
		if err != nil {
			return fmt.Errorf("log in: %w", err)
		}
		done, err := reply.feed(c.buffer[:n])
		switch {
		case err != nil:
			return fmt.Errorf("log in: %w", err)
		case done && reply.failure != "":
			return fmt.Errorf("log in: %w: %.100s", errRedis, reply.failure)
		case done:
			return nil
		}
	}
}

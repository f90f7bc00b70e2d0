package target

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

func TestSplitWords(t *testing.T) {
	for text, want := range map[string][]string{
		"GET key": {"GET", "key"}, "  SET a  'b c' ": {"SET", "a", "b c"}, `SET "x"'y'z ""`: {"SET", "xyz", ""}, "": nil,
	} {
		if got, err := splitWords(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	if _, err := splitWords("SET 'x"); err == nil {
		t.Error("an open quote was taken")
	}
}

// feedReply feeds text cut at cut.
func feedReply(text string, answers, cut int) (done bool, failure string, err error) {
	var r redisReply
	r.reset(answers)
	for _, piece := range []string{text[:cut], text[cut:]} {
		if piece == "" {
			continue
		}
		if done, err = r.feed([]byte(piece)); err != nil {
			break
		}
	}
	return done, r.failure, err
}

func TestRedisReply(t *testing.T) {
	f := func(text string, answers int, want bool, wantErr error, wantFailure string) {
		t.Helper()
		for cut := 0; cut <= len(text); cut++ {
			done, failure, err := feedReply(text, answers, cut)
			if done != want || !errors.Is(err, wantErr) || failure != wantFailure {
				t.Fatalf("%q cut at %d: %v, %v, %q", text, cut, done, err, failure)
			}
		}
	}
	f("+OK\r\n", 1, true, nil, "")
	f(":-5\r\n", 1, true, nil, "")
	f("$-1\r\n", 1, true, nil, "")
	f("$5\r\na\r\nbc\r\n", 1, true, nil, "")
	f("*-1\r\n", 1, true, nil, "")
	f("*0\r\n", 1, true, nil, "")
	f("*2\r\n*1\r\n:1\r\n$1\r\nx\r\n", 1, true, nil, "")
	f("+OK\r\n+OK\r\n$1\r\nx\r\n", 3, true, nil, "")
	f("-ERR no\r\n", 1, true, nil, "ERR no")
	f("-NOAUTH x\r\n-ERR y\r\n", 2, true, nil, "NOAUTH x")
	f("$5\r\nabc", 1, false, nil, "")
	f("*2\r\n:1\r\n", 1, false, nil, "")
	f("hello\r\n", 1, false, errMalformed, "")
	f("+OK\n", 1, false, errMalformed, "")
	f("$x\r\n", 1, false, errMalformed, "")
	f("$9999999999\r\n", 1, false, errMalformed, "")
	f("*2000000\r\n", 1, false, errMalformed, "")
}

func FuzzRedisReply(f *testing.F) {
	for _, seed := range []string{"+OK\r\n", "$3\r\nabc\r\n", "*2\r\n:1\r\n-E\r\n", "*1\r\n*1\r\n$0\r\n\r\n"} {
		f.Add(seed, 1, uint(3))
	}
	f.Fuzz(func(t *testing.T, text string, answers int, cut uint) {
		answers = max(1, answers%4)
		done, failure, err := feedReply(text, answers, 0)
		cutDone, cutFailure, cutErr := feedReply(text, answers, int(cut%uint(len(text)+1)))
		if done != cutDone || (err == nil) != (cutErr == nil) || err == nil && failure != cutFailure {
			t.Fatalf("whole %v %v %q, cut %v %v %q", done, err, failure, cutDone, cutErr, cutFailure)
		}
	})
}

func TestRedis(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	for _, command := range []string{"ACL SETUSER app on >word ~* +@all", "CONFIG SET requirepass 'se cret'"} {
		outcomes, _ := drive(t, open(t, Config{URL: server.URL(""), Commands: []string{command}}), 1, 1)
		if outcomes[0].Err != nil || outcomes[0].Kind != Other {
			t.Fatalf("%s: %+v", command, outcomes[0])
		}
	}
	set := open(t, Config{URL: "redis://app:word@" + server.Addr() + "/3", Commands: []string{"SET key:{sequence} 'a value'"}})
	outcomes, counters := drive(t, set, 3, 100)
	for _, o := range outcomes {
		if o.Err != nil || o.Kind != Write {
			t.Fatalf("outcome %+v", o)
		}
	}
	if counters.Connects != 3 {
		t.Errorf("%+v, want 3 connections", counters)
	}
	get := open(t, Config{URL: "redis://:se%20cret@" + server.Addr() + "/3", Commands: []string{"MGET key:{random(1,100)} key:{random(1,100)}"}})
	outcomes, _ = drive(t, get, 3, 100)
	for _, o := range outcomes {
		if o.Err != nil || o.Kind != Read || o.BytesReceived < int64(len("*2\r\n$7\r\na value\r\n$7\r\na value\r\n")) {
			t.Fatalf("outcome %+v", o)
		}
	}
	// Without its database or user, no request of a connection is good, and Check says so before the load.
	for _, address := range []string{"redis://app:word@" + server.Addr() + "/99", "redis://nobody:word@" + server.Addr()} {
		failing := open(t, Config{URL: address, Commands: []string{"GET x"}, Timeout: time.Minute})
		if err := failing.Check(t.Context()); !errors.Is(err, errRedis) || strings.Contains(err.Error(), "word@") {
			t.Errorf("%s: Check returns %v", address, err)
		}
		outcomes, counters := drive(t, failing, 1, 4)
		for _, o := range outcomes {
			if Classify(o.Err) != result.StatusError {
				t.Errorf("%s: outcome %v", address, o.Err)
			}
		}
		if counters.Connects != 4 {
			t.Errorf("%s: %d connections for 4 requests: one was used again", address, counters.Connects)
		}
	}
	for _, c := range []Config{
		{URL: "redis://" + server.Addr(), Commands: []string{"GET x"}},
		{URL: "redis://app:word@" + server.Addr(), Commands: []string{"NOSUCH x"}},
	} {
		outcomes, _ := drive(t, open(t, c), 1, 2)
		for _, o := range outcomes {
			if o.Err == nil || Classify(o.Err) != result.StatusError || strings.Contains(o.Err.Error(), "word") {
				t.Errorf("%v is %v, want a status error", o.Err, Classify(o.Err))
			}
		}
	}
}

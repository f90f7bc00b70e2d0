package popup

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

func TestToken(t *testing.T) {
	t.Parallel()
	a, b := bytes.Repeat([]byte("a"), 32), bytes.Repeat([]byte("b"), 40)
	signer := func(keys ...[]byte) *Signer { return NewSigner(keys, time.Hour) }
	want := Token{Key: Key{User: "ä7", Placement: "home"}, Campaign: 3, Version: 1 << 40, At: day0}
	text := signer(a).Sign(want)
	for name, s := range map[string]*Signer{"same key": signer(a), "old key": signer(b, a)} {
		if got, err := s.Open(text, "ä7", day0.Add(time.Hour)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, test := range []struct {
		name, text, user string
		signer           *Signer
		after            time.Duration
		want             error
	}{
		{"other key", text, "", signer(b), 0, ErrForged},
		{"other user", text, "8", signer(a), 0, ErrOtherUser},
		{"expired", text, "", signer(a), time.Hour + time.Millisecond, ErrExpired},
		{"empty", "", "", signer(a), 0, ErrMalformed},
		{"long", string(bytes.Repeat([]byte("A"), TokenBytesMax+1)), "", signer(a), 0, ErrMalformed},
		{"not base64", text[:9] + "+" + text[10:], "", signer(a), 0, ErrMalformed},
	} {
		if _, err := test.signer.Open(test.text, test.user, day0.Add(test.after)); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
	for i := range text {
		if _, err := signer(a).Open(text[:i], "", day0); !errors.Is(err, ErrMalformed) {
			t.Errorf("truncated to %d: %v", i, err)
		}
		letter := byte('A')
		if text[i] == 'A' {
			letter = 'B'
		}
		forged := text[:i] + string(letter) + text[i+1:]
		if _, err := signer(a).Open(forged, "", day0); !errors.Is(err, ErrForged) && !errors.Is(err, ErrMalformed) {
			t.Errorf("character %d changed: %v", i, err)
		}
	}
}

func FuzzToken(f *testing.F) {
	s := testSigner(f)
	good := s.Sign(Token{Key: Key{User: "7", Placement: "home"}, Campaign: 3, Variant: 2, Version: 1, At: day0})
	f.Add(good)
	f.Add(good[:20])
	f.Add(good[:40] + "\n" + good[40:])
	f.Fuzz(func(t *testing.T, text string) {
		token, err := s.Open(text, "", day0)
		if err == nil && s.Sign(token) != text {
			t.Fatalf("%q opens and is not what Sign gives", text)
		}
	})
}

func FuzzDecodeState(f *testing.F) {
	f.Add(AppendState(nil, State{}))
	f.Add(AppendState(nil, State{
		Version: 9, Phase: Clicked, Campaign: 3, Variant: 1, Shows: 2, Shown: 1 << 40, Answered: 1<<40 + 5, Until: never,
		others: "\x04\x05\x07", recent: "\x00\x00\x00\x01",
	}))
	f.Fuzz(func(t *testing.T, src []byte) {
		s, err := DecodeState(src)
		if err != nil {
			return
		}
		if back := AppendState(nil, s); !bytes.Equal(back, src) {
			t.Fatalf("%x is decoded to %+v, which is encoded to %x", src, s, back)
		}
	})
}

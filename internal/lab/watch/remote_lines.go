package watch

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"spillway/internal/lab/result"
)

// sampleLines reads the stream that Serve writes.
type sampleLines struct{ lines *bufio.Scanner }

func newSampleLines(in io.Reader) *sampleLines {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 4<<10), remoteLine)
	return &sampleLines{lines: lines}
}

// next returns the next sample, nil for an empty line.
func (l *sampleLines) next() (*result.Sample, error) {
	if !l.lines.Scan() {
		err := l.lines.Err()
		switch {
		case errors.Is(err, bufio.ErrTooLong):
			return nil, fmt.Errorf("a line of more than %d bytes", remoteLine)
		case err == nil:
			return nil, errors.New("the watch there has ended")
		}
		return nil, err
	}
	if len(l.lines.Bytes()) == 0 {
		return nil, nil
	}
	var s result.Sample
	if err := json.Unmarshal(l.lines.Bytes(), &s); err != nil {
		return nil, fmt.Errorf("a line that is no sample: %w", err)
	}
	if s.Sampler == "" {
		return nil, errors.New("a line that is no sample: it names no sampler")
	}
	s.Sampler, s.Subject, s.Error = printable(s.Sampler), printable(s.Subject), printable(s.Error)
	return &s, nil
}

// printable takes out of another host's text what would steer a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

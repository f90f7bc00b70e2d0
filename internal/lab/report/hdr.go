package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// writeHDR writes an HdrHistogram log, version 1.3, with one line per second and histogram, tagged with its name. Values
// are nanoseconds. The maximum of an interval is in milliseconds, by convention of the format.
func writeHDR(w io.Writer, runs []run) error {
	var out bytes.Buffer
	out.WriteString("#[Histogram log format version 1.3]\n")
	for i := range runs {
		if err := hdrRun(&out, &runs[i], i, len(runs)); err != nil {
			return fmt.Errorf("%s: %w", runs[i].label, err)
		}
	}
	return emit(w, &out)
}

func hdrRun(out *bytes.Buffer, r *run, i, n int) error {
	start := float64(r.Header.StartedAt.UnixMilli()) / 1000
	if i == 0 { // a log has one start; all times are absolute
		fmt.Fprintf(out, "#[StartTime: %.3f (seconds since epoch), %s]\n", start, r.Header.StartedAt.UTC().Format(time.RFC3339))
		out.WriteString("#[BaseTime: 0.000 (seconds since epoch)]\n")
		out.WriteString("\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n")
	}
	fmt.Fprintf(out, "#%s\n", oneLine(r.Header.Target))
	prefix := ""
	if n > 1 {
		prefix = tag(r.label) + "-"
	}
	for k := range r.steps {
		for _, slice := range r.steps[k].Slices {
			at := start + r.steps[k].Start + float64(slice.Second)
			if err := hdrSlice(out, prefix, at, &slice); err != nil {
				return fmt.Errorf("step %d: second %d: %w", k, slice.Second, err)
			}
		}
	}
	return nil
}

func hdrSlice(out *bytes.Buffer, prefix string, at float64, slice *result.Slice) error {
	for _, kind := range []struct {
		name    string
		payload result.HDR
	}{
		{"response", slice.Latency.Response},
		{"response_unanswered", slice.Latency.ResponseUnanswered},
		{"service", slice.Latency.Service},
		{"service_unanswered", slice.Latency.ServiceUnanswered},
		{"lag", slice.Latency.Lag},
		{"connect", slice.Latency.Connect},
		{"first_byte", slice.Latency.FirstByte},
	} {
		if kind.payload == "" {
			continue
		}
		h, err := histogram.Decode(string(kind.payload))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "Tag=%s%s,%.3f,%.3f,%.3f,%s\n", prefix, kind.name, at, slice.Length, h.Max().Seconds()*1000, oneWord(kind.payload))
	}
	return nil
}

// oneWord removes the line breaks that base64 may contain.
func oneWord(payload result.HDR) string { return strings.Join(strings.Fields(string(payload)), "") }

// tag replaces what a log line or a benchmark name cannot contain.
func tag(label string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("-_.", r) || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, label)
}

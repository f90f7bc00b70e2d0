package result

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestRoundTrip(t *testing.T) {
	want := sampleRun(t, "a", sampleStart)
	for _, name := range []string{"run.ndjson", "run.ndjson.gz"} {
		path := filepath.Join(t.TempDir(), name)
		if err := WriteFile(path, want); err != nil {
			t.Fatal(err)
		}
		got, err := ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Header{}, "Format", "Version")); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestCutAnywhere truncates a file at every byte. Complete records are read, and truncation is reported but not an error.
func TestCutAnywhere(t *testing.T) {
	whole := sampleRun(t, "a", sampleStart)
	whole.Steps = whole.Steps[:1]
	for i := range whole.Steps[0].Slices {
		whole.Steps[0].Slices[i].Latency = Latency{} // they would only make it slow
	}
	file := encoded(t, whole)
	headerEnd := bytes.IndexByte(file, '\n')
	for at := range len(file) - 1 {
		run, err := Read(bytes.NewReader(file[:at]))
		if at < headerEnd {
			if !errors.Is(err, ErrNotResult) {
				t.Fatalf("cut at %d, in the header: error %v", at, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("cut at %d: %v", at, err)
		}
		if run.CutOff == "" {
			t.Fatalf("cut at %d: not noticed", at)
		}
	}
	if run, err := Read(bytes.NewReader(file[:len(file)-1])); err != nil || run.CutOff != "" {
		t.Fatalf("only the last newline is missing: %v, %q", err, run.CutOff)
	}
}

func TestCutOffStepIsSummedFromSlices(t *testing.T) {
	file := encoded(t, sampleRun(t, "a", sampleStart))
	lines := bytes.SplitAfter(file, []byte("\n"))
	run, err := Read(bytes.NewReader(bytes.Join(lines[:4], nil))) // header, step, two slices
	if err != nil {
		t.Fatal(err)
	}
	total := run.Steps[0].Total
	if total.Done != 20 || total.Elapsed != 2 || total.Validity != Unjudged || len(total.Reasons) != 1 {
		t.Fatalf("total %+v", total)
	}
	if n := count(t, total.Latency.Response); n != 20 {
		t.Fatalf("%d latencies, want 20", n)
	}
}

func TestCutOffGzip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.gz")
	w, err := create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.write(sampleRun(t, "a", sampleStart).records()[:3]...); err != nil { // header, step and slice
		t.Fatal(err)
	}
	// No Close: the process was killed here. Every record was flushed.
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Steps) != 1 || len(got.Steps[0].Slices) != 1 || got.CutOff == "" {
		t.Fatalf("%d steps, cut off %q", len(got.Steps), got.CutOff)
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
}

func TestReadRefuses(t *testing.T) {
	whole := string(encoded(t, sampleRun(t, "a", sampleStart)))
	lines := strings.SplitAfter(whole, "\n")
	header, step, slice, total := lines[0], lines[1], lines[2], lines[5]
	f := func(name, file, want string) {
		t.Helper()
		_, err := Read(strings.NewReader(file))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
	f("empty", "", "not a spillway result file")
	f("other JSON", "{}\n", "not a spillway result file")
	f("text", "hello\n", "not a spillway result file")
	f("newer", strings.Replace(header, `"1.2"`, `"2.0"`, 1), `unknown version of the result format "2.0"`)
	f("bad line", header+"{\n"+step, "line 2: read record")
	f("no such part", strings.Replace(header, `"seed":7`, `"seed":7,"part":{"number":3,"of":2}`, 1), "line 1: there is no part 3 of 2")
	f("two headers", header+header, "line 2: a second header")
	f("slice outside", header+slice, "line 2: a slice of step 0 outside it")
	f("total outside", header+total, "line 2: the total of step 0 outside it")
	f("second twice", header+step+slice+slice, "line 4: second 0 follows second 0")
	f("step twice", header+step+step, "line 3: step 0 begins before the total of step 0")
	f("step skipped", header+strings.Replace(step, `"step":0`, `"step":5`, 1), "line 2: step 5 follows step -1")
	f("after the end", whole+slice, "a record after the end record")
	f("negative", header+step+strings.Replace(slice, `"sent":10`, `"sent":-1`, 1), "line 3: second 0: a count or a time is negative")
	f("too long ago", header+step+strings.Replace(slice, `"length_seconds":1`, `"length_seconds":1e99`, 1), "outside of any run")
	f("long line", header+strings.Repeat("x", MaxLineBytes+1), "line 2: longer than")
	f("bad histogram", header+step+strings.Replace(slice, `"response":"`, `"response":"!`, 1), "decode histogram")
}

func TestReadSkipsWhatItDoesNotKnow(t *testing.T) {
	whole := string(encoded(t, sampleRun(t, "a", sampleStart)))
	newer := strings.Replace(whole, `"1.2"`, `"1.7"`, 1)
	newer = strings.Replace(newer, `"unsent":1`, `"unsent":1,"eaten_by_bear":2`, 1)
	newer = strings.Replace(newer, "\n", "\n\n{\"record\":\"weather\",\"weather\":{}}\n", 1)
	run, err := Read(strings.NewReader(newer))
	if err != nil {
		t.Fatal(err)
	}
	if got := run.Steps[0].Slices[0].Errors; got[Other] != 2 || got[Unsent] != 1 {
		t.Fatalf("errors %v", got.String())
	}
}

func FuzzRead(f *testing.F) {
	small := sampleRun(f, "a", sampleStart)
	for i := range small.Steps {
		for k := range small.Steps[i].Slices {
			small.Steps[i].Slices[k].Latency = Latency{}
		}
	}
	f.Add(encoded(f, small))
	watched := watchedRun(f, "a", sampleStart)
	watched.Steps = nil
	f.Add(encoded(f, watched))
	f.Add([]byte("{\"record\":\"header\",\"header\":{\"format\":\"spillway-result\",\"version\":\"1.0\"}}\n{\"record\":\"step\"}\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		run, err := Read(bytes.NewReader(file))
		if err != nil {
			return
		}
		again, err := Read(bytes.NewReader(encoded(t, run)))
		if err != nil {
			t.Fatalf("what was read is refused when written: %v", err)
		}
		ignore := []cmp.Option{cmpopts.IgnoreFields(Run{}, "CutOff"), cmpopts.IgnoreFields(Header{}, "Format", "Version"), cmpopts.EquateEmpty()}
		if diff := cmp.Diff(run, again, ignore...); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestDocumentation requires every field in docs/reference/json.md.
func TestDocumentation(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/reference/json.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(fieldNames(reflect.TypeFor[record]()), fieldNames(reflect.TypeFor[Usage]())...) {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/reference/json.md does not name the field %s", name)
		}
	}
}

// fieldNames returns the JSON names of a type and its fields. It stops at the parts of a header, which are headers again.
func fieldNames(t reflect.Type) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[Header]().PkgPath() {
		return nil
	}
	var names []string
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name != "" && !(t == reflect.TypeFor[record]() && name == "record") {
			names = append(names, name)
		}
		if field.Name != "Parts" {
			names = append(names, fieldNames(field.Type)...)
		}
	}
	return names
}

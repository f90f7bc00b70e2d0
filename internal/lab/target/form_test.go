package target

import (
	"io"
	"mime"
	"mime/multipart"
	"path/filepath"
	"strings"
	"testing"
)

func TestForm(t *testing.T) {
	path := writeFile(t, "a b.txt", "{sequence}\r\n--x\xff")
	header, body, err := ParseForm([]string{"id=n{sequence}", `q"=a=b`, "file=@" + path, "empty="})
	if err != nil {
		t.Fatal(err)
	}
	mix, err := newHTTPMix([]HTTPRequest{{Method: "POST", Path: template(t, "/"), Body: body}}, "h", []Header{header})
	if err != nil {
		t.Fatal(err)
	}
	s := newSource()
	s.Next()
	r, text := readBack(t, mix.requests[0].append(nil, false, s))
	_, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	form, err := multipart.NewReader(strings.NewReader(text), parameters["boundary"]).ReadForm(1 << 20)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	for name, want := range map[string]string{"id": "n1", `q"`: "a=b", "empty": ""} {
		if got := form.Value[name]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	file := form.File["file"][0]
	reader, err := file.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if got, err := io.ReadAll(reader); err != nil || string(got) != "{sequence}\r\n--x\xff" || file.Filename != filepath.Base(path) || !strings.HasPrefix(file.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("file %q %v: %q, %v", file.Filename, file.Header, got, err)
	}
	if _, constant, err := ParseForm([]string{"a=b", "c=d"}); err != nil || len(constant.parts) != 1 {
		t.Errorf("a form without values has %d parts, %v", len(constant.parts), err)
	}
	for _, field := range []string{"a", "=b", "a=@/no/such", "a={randm(1)}"} {
		if _, _, err := ParseForm([]string{field}); err == nil || !strings.HasPrefix(err.Error(), "--form") {
			t.Errorf("%q: %v", field, err)
		}
	}
}

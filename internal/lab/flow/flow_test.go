package flow

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/lab/target"
	"spillway/internal/yaml"
)

// write writes files to a new directory and returns the path of the first.
func write(t testing.TB, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, files[0])
}

func read(t testing.TB, files ...string) *Flow {
	t.Helper()
	f, err := Read(write(t, files...))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func newUser(f *Flow, number int) *User {
	return f.NewUser("127.0.0.1", target.NewSource(1, number, new(atomic.Int64)), 1, number)
}

// sent is what a Call would send.
type sent struct {
	Line    string
	Headers map[string]string
	Body    string
}

func send(t *testing.T, u *User, step int) sent {
	t.Helper()
	if !u.Ready(step) {
		t.Fatalf("step %d cannot be sent", step)
	}
	c := u.Call(step)
	headers := map[string]string{}
	for _, h := range c.Headers {
		headers[h.Name] = h.Value
	}
	return sent{c.Method + " " + c.Path, headers, string(c.Body)}
}

func answer(u *User, status int, body string, headers ...string) error {
	a := &u.call.Answer
	*a = target.Answer{Status: status, Body: []byte(body), Header: http.Header{}}
	for i := 0; i < len(headers); i += 2 {
		a.Header.Add(headers[i], headers[i+1])
	}
	return u.Receive(true)
}

const shop = `
think: 1s..3s
headers: {Accept: application/json}
data:
  users: {file: users.csv}
values: {amount: "{random(3,3)}"}
steps:
  - name: login
    path: /login
    json: {user: "{users.name}", password: "{users.password}", age: 5, deep: [true, null, "{amount}", 1.50, "a {users.name}"], number: "{random(7,7)}"}
    checks: [status=200]
    extract:
      token: {json: $.token}
      id: {json: "$.items[0].id"}
      item: {json: "$.items[1]"}
  - name: list
    path: /items?q={users.name}&n={sequence}
    headers: {authorization: "Bearer {token}", Accept: text/plain}
    extract:
      next: {header: Location}
      csrf: {regex: 'csrf="([^"]+)"'}
    think: 0s
  - name: order
    method: PUT
    path: "{+next}"
    json: {id: "{id}", item: "{item}", name: "x{id}", csrf: "{csrf}"}
    on_failure: continue
  - name: pay
    path: /pay/{id}
    form: {"user name": "{users.name}", amount: "{amount}"}
`

func TestUser(t *testing.T) {
	f := read(t, "shop.yaml", shop, "users.csv", "name,password\n\"a \"\"b\"\" & c\",p1\nö,p2\n")
	u := newUser(f, 0)
	u.Begin()
	got := []sent{send(t, u, 0)}
	if err := answer(u, 200, `{"token":"t\"1","items":[{"id":9007199254740993},{"a":[1]}]}`, "Set-Cookie", "sid=1; Path=/; Secure", "Set-Cookie", "old=1; Max-Age=0"); err != nil {
		t.Fatal(err)
	}
	got = append(got, send(t, u, 1))
	if err := answer(u, 200, `<i csrf="c1"><i csrf="c2">`, "Location", "/next?a=b%20c"); err != nil {
		t.Fatal(err)
	}
	got = append(got, send(t, u, 2), send(t, u, 3))
	u.Begin()
	got = append(got, send(t, u, 0))
	want := []sent{
		{
			"POST /login",
			map[string]string{"Accept": "application/json", "Content-Type": "application/json"},
			`{"user":"a \"b\" & c","password":"p1","age":5,"deep":[true,null,3,1.50,"a a \"b\" & c"],"number":7}`,
		},
		{"GET /items?q=a%20%22b%22%20%26%20c&n=1", map[string]string{"Accept": "text/plain", "authorization": `Bearer t"1`, "Cookie": "sid=1"}, ""},
		{
			"PUT /next?a=b%20c",
			map[string]string{"Accept": "application/json", "Content-Type": "application/json", "Cookie": "sid=1"},
			`{"id":9007199254740993,"item":{"a":[1]},"name":"x9007199254740993","csrf":"c1"}`,
		},
		{
			"POST /pay/9007199254740993",
			map[string]string{"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded", "Cookie": "sid=1"},
			"user+name=a+%22b%22+%26+c&amount=3",
		},
		{
			"POST /login",
			map[string]string{"Accept": "application/json", "Content-Type": "application/json"},
			`{"user":"ö","password":"p2","age":5,"deep":[true,null,3,1.50,"a ö"],"number":7}`,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if u.Ready(1) {
		t.Error("a step is ready although the value that it needs belongs to the last iteration")
	}
	if !u.Proceeds(2) || u.Proceeds(1) {
		t.Error("on_failure is not the one of the step")
	}
	if diff := cmp.Diff([]string{"login", "list", "order", "pay"}, f.Names()); diff != "" {
		t.Error(diff)
	}
}

// TestCookies keeps them per iteration, per user or not at all.
func TestCookies(t *testing.T) {
	for option, want := range map[string][2]string{"iteration": {"a=1", ""}, "user": {"a=1", "a=1"}, "none": {"", ""}} {
		u := newUser(read(t, "f.yaml", "cookies: "+option+"\nsteps: [{name: a, path: /a}, {name: b, path: /b, headers: {X: y}}]"), 0)
		u.Begin()
		u.Call(0)
		if err := answer(u, 401, "", "Set-Cookie", "a=1; Path=/; Domain=127.0.0.1"); err != nil {
			t.Fatal(err)
		}
		first := send(t, u, 1).Headers["Cookie"]
		u.Begin()
		if got := [2]string{first, send(t, u, 0).Headers["Cookie"]}; got != want {
			t.Errorf("cookies: %s: sent %q, want %q", option, got, want)
		}
	}
	u := newUser(read(t, "f.yaml", "steps: [{name: a, path: /a, headers: {cookie: x=1}}]"), 0)
	u.Begin()
	u.Call(0)
	if err := answer(u, 200, "", "Set-Cookie", "a=1"); err != nil || send(t, u, 0).Headers["cookie"] != "x=1" {
		t.Errorf("a Cookie header of the step was not sent as written: %v", err)
	}
}

// TestRows draws rows in order, at random and once, with two users.
func TestRows(t *testing.T) {
	draw := func(rows, name, content string, n int) string {
		f := read(t, "f.yaml", "data: {d: {file: "+name+", rows: "+rows+"}}\nsteps: [{name: a, path: '/{d.v}', json: ['{d.v}']}]", name, content)
		users := []*User{newUser(f, 0), newUser(f, 1)}
		var got []string
		for i := range n {
			if f.Take() < 0 {
				got = append(got, "end of "+f.UsedUp())
				continue
			}
			u := users[i%2]
			u.Begin()
			s := send(t, u, 0)
			got = append(got, s.Line[len("POST /"):]+s.Body)
		}
		return strings.Join(got, " ")
	}
	const table, list = "v\nx\n2\n", `[{"v": "x", "w": 1}, {"w": 1, "v": 2}]`
	for _, test := range []struct{ rows, name, content, want string }{
		{"in_order", "d.csv", table, `x["x"] 2["2"] x["x"] 2["2"]`},
		{"in_order", "d.json", list, `x["x"] 2[2] x["x"] 2[2]`},
		{"once", "d.json", list, `x["x"] 2[2] end of d.json end of d.json`},
		{"in_order", "d.csv", "\ufeff" + table, `x["x"] 2["2"] x["x"] 2["2"]`},
		{"in_order", "d.json", "\ufeff" + list, `x["x"] 2[2] x["x"] 2[2]`},
		{"random", "d.csv", "v\nx\n", `x["x"] x["x"] x["x"] x["x"]`},
	} {
		if got := draw(test.rows, test.name, test.content, 4); got != test.want {
			t.Errorf("rows: %s of %s: %s, want %s", test.rows, test.name, got, test.want)
		}
	}
	words := strings.Fields(draw("random", "d.csv", table, 400))
	count := strings.Count(strings.Join(words, " "), "x[")
	if count < 150 || count > 250 {
		t.Errorf("rows: random drew the first of two rows %d times of 400", count)
	}
}

// TestManyCookies: the memory for the Cookie header grows with its length, and not with its square.
func TestManyCookies(t *testing.T) {
	const cookies = 1000
	u := newUser(read(t, "f.yaml", "cookies: user\nsteps: [{name: a, path: /a}]"), 0)
	u.Begin()
	u.Call(0)
	var headers, want []string
	for i := range cookies {
		cookie := fmt.Sprintf("c%04d=%s", i, strings.Repeat("v", 1000))
		headers, want = append(headers, "Set-Cookie", cookie), append(want, cookie)
	}
	if err := answer(u, 200, "", headers...); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	line := send(t, u, 0).Headers["Cookie"]
	runtime.ReadMemStats(&after)
	got := strings.Split(line, "; ")
	slices.Sort(got) // those of the same time have no order
	if !slices.Equal(got, want) {
		t.Errorf("%d cookies were sent, or others", len(got))
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > uint64(20*len(line)) {
		t.Errorf("%d bytes were allocated for a line of %d", allocated, len(line))
	}
}

// TestThink compares think times with their distributions.
func TestThink(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for text, want := range map[string]struct{ low, high, mean time.Duration }{
		"":                 {0, 0, 0},
		"500ms":            {500 * time.Millisecond, 500 * time.Millisecond, 500 * time.Millisecond},
		"1s..3s":           {time.Second, 3 * time.Second, 2 * time.Second},
		"exponential(2s)":  {0, time.Hour, 2 * time.Second},
		"0s..0s":           {0, 0, 0},
		"1000ms..1s":       {time.Second, time.Second, time.Second},
		"exponential(1us)": {0, time.Second, time.Microsecond},
	} {
		think, ok := parseThink(text)
		const n = 20_000
		sum := time.Duration(0)
		for range n {
			d := think.draw(random)
			if d < want.low || d > want.high {
				t.Fatalf("think %q: %s", text, d)
			}
			sum += d
		}
		if mean := sum / n; !ok || mean < want.mean*97/100 || mean > want.mean*103/100 {
			t.Errorf("think %q: mean %s, want %s", text, mean, want.mean)
		}
	}
}

func TestExtract(t *testing.T) {
	for _, test := range []struct{ spec, body, want string }{
		{"json: $.a", `{"a": 1.5}`, "1.5"},
		{"json: $.a", `{"a": null}`, "null"},
		{"json: $.a", `{"a": "é\n"}`, "é\n"},
		{"json: \"$..id\"", `[{"id": 3}]`, "3"},
		{"json: \"$.a[?@.b == 'y'].c\"", `{"a": [{"b":"x","c":1},{"b":"y","c":2}]}`, "2"},
		{"json: \"$.a[?(@.n > 1)].n\"", `{"a": [{"n":1},{"n":2}]}`, "2"},
		{"json: $.a, pick: random", `{"a": "one"}`, "one"},
		{"json: $.b", `{"a": 1}`, "a: extract v: nothing in the answer is at $.b"},
		{"json: $.b", `{"a": `, "a: extract v: the answer is not JSON"},
		{"json: $.b", ``, "a: extract v: the answer is not JSON"},
		{"json: $.a", strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), "a: extract v: the answer is not JSON"},
		{"regex: 'b+'", `aabbb`, "bbb"},
		{"regex: 'a(b)(c)'", `abc`, "b"},
		{"regex: 'x'", `abc`, "a: extract v: nothing in the answer matches x"},
		{"header: x-a", ``, "h"},
		{"header: X-B", ``, "a: extract v: the answer has no header X-B"},
	} {
		u := newUser(read(t, "f.yaml", "steps: [{name: a, path: /a, extract: {v: {"+test.spec+"}}}, {name: b, path: /b, body: '{v}'}]"), 0)
		u.Begin()
		u.Call(0)
		err := answer(u, 200, test.body, "X-A", "h")
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = send(t, u, 1).Body
		}
		if got != test.want {
			t.Errorf("%s in %.40s: %q, want %q", test.spec, test.body, got, test.want)
		}
	}
}

// TestPickRandom extracts any of several matches.
func TestPickRandom(t *testing.T) {
	for _, spec := range []string{"json: '$[*]'", "regex: '[xy]'", "header: X-A"} {
		u := newUser(read(t, "f.yaml", "steps: [{name: a, path: /a, extract: {v: {"+spec+", pick: random}}}, {name: b, path: /b, body: '{v}'}]"), 0)
		u.Begin()
		seen := map[string]bool{}
		for range 200 {
			u.Call(0)
			if err := answer(u, 200, `["x","y"]`, "X-A", "x", "X-A", "y"); err != nil {
				t.Fatal(err)
			}
			seen[send(t, u, 1).Body] = true
		}
		if !seen["x"] || !seen["y"] || len(seen) != 2 {
			t.Errorf("%s: extracted %v", spec, seen)
		}
	}
}

func TestMistakes(t *testing.T) {
	t.Setenv("FLOW_SECRET", "hidden {token} value")
	for _, test := range []struct{ text, want string }{
		{"steps: []", "1:8: steps: needs at least one step"},
		{"", "1:1: the file is empty; write the steps of a user"},
		{"steps: [{name: a, path: /, chekcs: []}]", "1:28: steps[0].chekcs: unknown key; did you mean checks?"},
		{"cookies: yes\nsteps: [{name: a, path: /}]", `1:10: cookies: must be iteration, user or none, not "yes"`},
		{"steps: [{path: /}]", "1:9: steps[0].name: must be 1 to 64 letters, digits, blanks and -_./:"},
		{"steps:\n- {name: 'a}', path: /}\n- {name: b}\n", "2:10: steps[0].name: must be 1 to 64 letters, digits, blanks and -_./:, not \"a}\"\n3:3: steps[1].path: path \"\" does not begin with /"},
		{"steps: [{name: a, path: /}, {name: a, path: /}]", `1:36: steps[1].name: is the name of an earlier step, not "a"`},
		{"steps: [{name: a, path: '/{token}'}]", "1:25: steps[0].path: unknown value {token}; write {random(LOW,HIGH)}"},
		{"steps: [{name: a, path: '/', body: '{ v }', extract: {v: {json: $.a}}}]", "1:36: steps[0].body: unknown value { v }; write"},
		{"steps: [{name: a, path: '/ x'}]", "steps[0].path: path \"/ x\" contains a space"},
		{"steps: [{name: a, path: '/${FLOW_SECRET}'}]", "1:25: steps[0].path: is not valid with the values of its environment variables"},
		{"steps: [{name: a, path: '/', headers: {A: '${NOT_SET_18}'}}]", "1:43: steps[0].headers.A: the environment variable NOT_SET_18 is not set"},
		{"steps: [{name: a, path: '/', headers: {Content-Length: 5}}]", "headers.Content-Length: header Content-Length: it is computed from the body"},
		{"steps: [{name: a, path: '/', body: x, json: {}}]", "1:9: steps[0]: has more than one of body, body_file, json and form"},
		{"steps: [{name: a, path: '/', body_file: none}]", "steps[0].body_file: open "},
		{"steps: [{name: a, path: '/', json: [.inf]}]", "steps[0].json[0]: has no form in JSON"},
		{"steps: [{name: a, path: '/', json: [1_0.5]}]", "steps[0].json[0]: is not a number of JSON"},
		{"steps: [{name: a, path: '/', method: 'G T'}]", `steps[0].method: is not a method of HTTP, not "G T"`},
		{"steps: [{name: a, path: '/', checks: [status=x]}]", "steps[0].checks: check status=x"},
		{"steps: [{name: a, path: '/', think: 5}]", `steps[0].think: must be a duration such as 500ms, a range such as 1s..3s, or exponential(2s), not "5"`},
		{"steps: [{name: a, path: '/', think: 3s..1s}]", "steps[0].think: must be a duration"},
		{"steps: [{name: a, path: '/', on_failure: stop}]", `steps[0].on_failure: must be end or continue, not "stop"`},
		{"steps: [{name: a, path: '/', extract: {v: {}}}]", "steps[0].extract.v: needs one of json, header and regex"},
		{"steps: [{name: a, path: '/', extract: {v: {json: $.a, header: b}}}]", "steps[0].extract.v: needs one of json, header and regex"},
		{"steps: [{name: a, path: '/', extract: {v: {json: a.b}}}]", `steps[0].extract.v.json: must be a JSON path such as $.items[0].id, not "a.b"`},
		{"steps: [{name: a, path: '/', extract: {v: {json: '$['}}}]", "steps[0].extract.v.json: must be a JSON path"},
		{"steps: [{name: a, path: '/', extract: {v: {regex: '('}}}]", "steps[0].extract.v.regex: is not a regular expression of Go"},
		{"steps: [{name: a, path: '/', extract: {sequence: {json: $.a}}}]", "steps[0].extract.sequence: the name must be"},
		{"data: {d: {file: none.csv}}\nsteps: [{name: a, path: /}]", "1:18: data.d.file: cannot be opened: open "},
		{"data: {d: {rows: twice}}\nsteps: [{name: a, path: /}]", "data.d.rows: must be in_order, random or once, not \"twice\""},
		{"data: {d: {file: bad.json}}\nsteps: [{name: a, path: /}]", "data.d.file: cannot be read: row 2: the first row has a field \"a\", and this one does not"},
		{"data: {d: {file: bad.csv}}\nsteps: [{name: a, path: /}]", "data.d.file: cannot be read: record on line 2: wrong number of fields"},
		{"data: {d: {file: twice.csv}}\nsteps: [{name: a, path: /}]", `data.d.file: the column "a" is there twice`},
		{"data: {d: {file: empty.csv}}\nsteps: [{name: a, path: /}]", "data.d.file: cannot be read: it has no rows"},
	} {
		path := write(t, "f.yaml", test.text, "bad.json", `[{"a":1},{"b":1}]`, "bad.csv", "a,b\n1\n", "twice.csv", "a,a\n1,2\n", "empty.csv", "a\n")
		_, err := Read(path)
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), path+":", ""), test.want) {
			t.Errorf("%q\n got %v\nwant %s", test.text, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: the error shows a secret: %v", test.text, err)
		}
	}
}

// TestRowsOfParts: the parts of a load take the rows of a file in turn, each row once.
func TestRowsOfParts(t *testing.T) {
	const rows, parts = 11, 3
	csv := "id\n"
	for i := range rows {
		csv += fmt.Sprintln(i)
	}
	for order, want := range map[string]int{"once": 1, "in_order": 2} {
		text := "data: {d: {file: d.csv, rows: " + order + "}}\nsteps: [{name: a, path: '/{d.id}'}]"
		used := map[string]int{}
		for i := range parts {
			f := read(t, "f.yaml", text, "d.csv", csv)
			if err := f.Part(target.Part{Number: i, Of: parts}); err != nil {
				t.Fatal(err)
			}
			u := newUser(f, 0)
			for n := 0; f.Take() >= 0 && n < want*rows; n++ { // in order, each part takes every row in the end
				u.Begin()
				used[u.Call(0).Path]++
			}
		}
		for i := range rows {
			n := used[fmt.Sprintf("/%d", i)]
			if order == "once" && n != 1 || order == "in_order" && n != want*parts {
				t.Errorf("%s: row %d is used %d times", order, i, n)
			}
		}
	}
	f := read(t, "f.yaml", "data: {d: {file: d.csv, rows: once}}\nsteps: [{name: a, path: '/'}]", "d.csv", csv)
	if err := f.Part(target.Part{Of: rows + 1}); err == nil || err.Error() != "d.csv has 11 rows for 12 parts: each needs at least one" {
		t.Error(err)
	}
}

// TestEnvironment inserts variables as they are, also with braces.
func TestEnvironment(t *testing.T) {
	t.Setenv("FLOW_SECRET", "a{b}c{sequence}")
	u := newUser(read(t, "f.yaml", "steps: [{name: a, path: '/?k=${FLOW_SECRET}', headers: {X: '${FLOW_SECRET}'}, json: ['${FLOW_SECRET}', '$${{X}']}]"), 0)
	u.Begin()
	want := sent{"POST /?k=a{b}c{sequence}", map[string]string{"X": "a{b}c{sequence}", "Content-Type": "application/json"}, `["a{b}c{sequence}","${X}"]`}
	if diff := cmp.Diff(want, send(t, u, 0)); diff != "" {
		t.Error(diff)
	}
}

// FuzzFlow: any text is a flow that makes requests, or mistakes with their places.
func FuzzFlow(f *testing.F) {
	f.Add(shop)
	f.Add(strings.Replace(shop, "users.", "users.a", -1))
	f.Add("steps: [{name: a, path: '/{random(1,2)}', form: {a: b}, extract: {v: {json: '$..a', pick: random}}}, {name: b, path: '{+v}', json: {a: ['{v}', 1e3, .5]}}]")
	f.Add("values: {a: '{sequence}'}\nsteps: [{name: a, path: /, extract: {v: {regex: '(a)|b'}}}, {name: b, path: '/{v}?{a}', body: '{{{v}'}]")
	f.Chdir(filepath.Dir(write(f, "users.csv", "name,password\na,b\n")))
	line := regexp.MustCompile(`^f\.yaml:[1-9][0-9]*:[1-9][0-9]*: [^\n]+$`)
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := parse("f.yaml", []byte(text), func(string) (string, bool) { return "v{1}", true })
		if err != nil {
			var all yaml.Errors
			if !errors.As(err, &all) {
				t.Fatalf("error of type %T", err)
			}
			for _, one := range all {
				if !line.MatchString(one.Error()) {
					t.Fatalf("%q: not one line with its place: %q", text, one.Error())
				}
			}
			return
		}
		u := newUser(parsed, 0)
		u.Begin()
		for i := range parsed.steps {
			if u.Ready(i) {
				u.Call(i)
				_ = answer(u, 200, `{"a":[1,"b"]} csrf="x"`, "A", "b", "Set-Cookie", "a=b")
				u.Think(i)
			}
		}
	})
}

// FuzzExtract: no answer makes an extraction panic.
func FuzzExtract(f *testing.F) {
	f.Add(`{"a":[{"b":1}]}`, "$.a[?@.b == 1].b", "(b)")
	f.Add(`[1,2,[3]]`, "$..[*]", "[0-9]+")
	f.Add(`{"a":"x"}`, "$[?(@.a =~ /x/)]", "x|(y)")
	f.Fuzz(func(t *testing.T, body, path, pattern string) {
		for _, spec := range []extractSpec{{Name: "v", JSON: path}, {Name: "v", Regex: pattern}} {
			document, err := yaml.Parse("f", []byte("a: b"), yaml.Options{})
			if err != nil {
				t.Fatal(err)
			}
			b := newBuilder(document, ".")
			e := b.extraction("", &spec)
			if document.Err() != nil {
				continue
			}
			random := rand.New(rand.NewPCG(1, 1))
			if _, err := e.find(&target.Answer{Status: 200, Body: []byte(body)}, func() (any, error) { return parseAnswer([]byte(body)) }, random); err != nil && strings.ContainsRune(err.Error(), '\n') && !strings.ContainsRune(path+pattern, '\n') {
				t.Fatalf("error of several lines: %q", err)
			}
		}
	})
}

package labtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
)

// shop is a service whose pages need the cookie and the token of a login, and whose
// items only the user who got them may order.
type shop struct {
	mu     sync.Mutex
	users  []string       // logins, in their order
	orders map[string]int // by user
	seen   map[string]int // requests by method and path
}

func (s *shop) count(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	s.seen[path]++
}

func (s *shop) login(w http.ResponseWriter, r *http.Request) {
	var user struct{ Name, Password string }
	if err := json.NewDecoder(r.Body).Decode(&user); err != nil || user.Password != "p-"+user.Name || len(r.Cookies()) > 0 {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	s.mu.Lock()
	s.users = append(s.users, user.Name)
	s.mu.Unlock()
	http.SetCookie(w, &http.Cookie{Name: "user", Value: user.Name, Path: "/", Secure: true, HttpOnly: true})
	fmt.Fprintf(w, `{"token": "t-%s"}`, user.Name)
}

// member calls next for a user who is logged in.
func member(next func(w http.ResponseWriter, r *http.Request, user string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		cookie, err := r.Cookie("user")
		if err != nil || r.Header.Get("Authorization") != "Bearer t-"+cookie.Value {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next(w, r, cookie.Value)
	}
}

func openShop(t *testing.T) (s *shop, url string) {
	t.Helper()
	s = &shop{orders: map[string]int{}, seen: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /login", s.login)
	mux.HandleFunc("GET /items", member(func(w http.ResponseWriter, _ *http.Request, user string) {
		fmt.Fprintf(w, `{"items": [{"id": "%s-1"}, {"id": "%s-2"}]}`, user, user)
	}))
	mux.HandleFunc("PUT /orders/{item}", member(func(w http.ResponseWriter, r *http.Request, user string) {
		var order struct {
			Item   string
			Amount int
		}
		body, _ := io.ReadAll(r.Body)
		err := json.Unmarshal(body, &order)
		item := r.PathValue("item")
		if err != nil || item != user+"-1" && item != user+"-2" || order.Item != item || order.Amount < 1 || order.Amount > 5 {
			http.Error(w, "wrong order "+string(body), http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		s.orders[user]++
		s.mu.Unlock()
		w.WriteHeader(http.StatusCreated)
	}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.count(r)
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return s, server.URL
}

// documentedFlow returns the flow in docs/reference/load.md with short think times.
func documentedFlow(t *testing.T) string {
	t.Helper()
	flow, err := os.ReadFile("testdata/shop.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("think: 1s..3s ", "think: 1ms..3ms ", "exponential(2s)\n", "exponential(2ms)\n").Replace(string(flow))
}

// flowFile writes a flow and the file of its users.
func flowFile(t *testing.T, flow string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"shop.yaml": flow, "users.csv": "name,password\nada,p-ada\nbob,p-bob\neve,p-eve\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "shop.yaml")
}

// flowLoad runs a flow and returns its only step.
func flowLoad(t *testing.T, code int, flow, url string, args ...string) report.DocumentStep {
	t.Helper()
	stdout, stderr, got := spillway(t, append([]string{"load", url, "--flow", flowFile(t, flow), "--json"}, args...)...)
	var d report.Document
	if err := json.Unmarshal([]byte(stdout), &d); err != nil || got != code || len(d.Steps) != 1 || d.Steps[0].Iterations == nil {
		t.Fatalf("exit %d, want %d; %v\n%s%s", got, code, err, stdout, stderr)
	}
	return d.Steps[0]
}

// TestLoadFlow runs the documented flow in both loops, and over short connections.
func TestLoadFlow(t *testing.T) {
	t.Parallel()
	flow := documentedFlow(t)
	for _, args := range [][]string{{"-c", "4", "-n", "30"}, {"--rate", "60", "-n", "30"}, {"-c", "4", "-n", "30", "--per-connection", "2"}} {
		s, url := openShop(t)
		step := flowLoad(t, exit.OK, flow, url, args...)
		if step.Due != 90 || step.Completed != 90 || step.ErrorTotal != 0 || step.Response.Count != 90 {
			t.Errorf("%v: %d due, %d completed, errors %v (%s), want 90", args, step.Due, step.Completed, step.Errors, step.Reasons)
		}
		if i := step.Iterations; i.Completed != 30 || i.Failed != 0 || i.Unfinished != 0 || i.Duration.Count != 30 {
			t.Errorf("%v: iterations %+v, want 30", args, *i)
		}
		if s.orders["ada"] != 10 || s.orders["bob"] != 10 || s.orders["eve"] != 10 {
			t.Errorf("%v: orders %v, want 10 of each user", args, s.orders)
		}
	}
}

// TestLoadFlowOnce uses every row once over all users; then the run ends.
func TestLoadFlowOnce(t *testing.T) {
	t.Parallel()
	s, url := openShop(t)
	flow := strings.Replace(documentedFlow(t), "rows: in_order", "rows: once", 1) + "    think: 1h\n" // after the last step
	step := flowLoad(t, exit.OK, flow, url, "-c", "3", "-d", "10h")                                   // ends long before
	slices.Sort(s.users)
	if !slices.Equal(s.users, []string{"ada", "bob", "eve"}) || step.Iterations.Completed != 3 {
		t.Errorf("users %v, iterations %+v, want each user and 3 iterations", s.users, *step.Iterations)
	}
	if !slices.ContainsFunc(step.Reasons, func(r string) bool { return strings.Contains(r, "users.csv") }) {
		t.Errorf("reasons %v do not name the data", step.Reasons)
	}
}

// TestLoadFlowFailure has users whose login, or a value of it, is wrong: later steps
// are not sent, unless the flow says so.
func TestLoadFlowFailure(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, from, to string
		class          string
		seen           map[string]int
		failed         int64
	}{
		{"password", `"{users.password}"`, `"{users.name}"`, "status", map[string]int{"login": 12}, 12},
		{"value", "$.token", "$.none", "check", map[string]int{"login": 12}, 12},
		{"continue without the value", "$.token}", "$.none}\n    on_failure: continue", "check", map[string]int{"login": 12}, 12},
		{"token", "\"Bearer {token}\"}\n    extract", "\"Bearer {token}?\"}\n    on_failure: continue\n    extract", "status", map[string]int{"login": 12, "items": 12}, 12},
		{"continue", "limit=20\n", "limit=20\n    on_failure: continue\n    checks: [body~=none]\n", "check", map[string]int{"login": 12, "items": 12}, 12},
		{"one user", "in_order", "in_order}\n  bad: {file: users.csv", "", map[string]int{"login": 12, "items": 12, "orders": 12}, 0},
	} {
		s, url := openShop(t)
		flow := strings.Replace(documentedFlow(t), test.from, test.to, 1)
		step := flowLoad(t, exit.OK, flow, url, "-c", "3", "-n", "12")
		if fmt.Sprint(s.seen) != fmt.Sprint(test.seen) || step.Iterations.Failed != test.failed || step.Iterations.Completed != 12-test.failed {
			t.Errorf("%s: the server saw %v, want %v; iterations %+v, errors %s", test.name, s.seen, test.seen, *step.Iterations, step.Errors.String())
		}
		if !strings.HasPrefix(step.Errors.String(), test.class) || int(step.Due) != s.seen["login"]+s.seen["items"]+s.seen["orders"] {
			t.Errorf("%s: %d due, errors %s", test.name, step.Due, step.Errors.String())
		}
	}
}

// TestLoadFlowInterrupt ends a run whose users pause.
func TestLoadFlowInterrupt(t *testing.T) {
	t.Parallel()
	s, url := openShop(t)
	path := flowFile(t, strings.Replace(documentedFlow(t), "think: 1ms..3ms", "think: 1h", 1))
	p := command(t, "load", url, "--flow", path, "-c", "2", "-d", "2h")
	p.start(t)
	apptest.Await(t, "both users have logged in", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.users) == 2
	})
	if code := p.interrupt(t); code != exit.OK || !strings.Contains(p.stdout.String(), "0 completed (0/s), 0 failed, 2 in progress at the end") {
		t.Errorf("exit %d\n%s%s", code, &p.stdout, &p.stderr)
	}
}

// TestLoadFlowMistakes lists what is wrong before any load.
func TestLoadFlowMistakes(t *testing.T) {
	t.Parallel()
	s, url := openShop(t)
	good := documentedFlow(t)
	bad := strings.NewReplacer("{users.name}", "{user.name}", "checks:", "cheks:").Replace(good)
	for _, test := range []struct {
		flow string
		args []string
		want []string
	}{
		{bad, nil, []string{"shop.yaml:25:5: steps[2].cheks: unknown key; did you mean checks?\n"}},
		{strings.ReplaceAll(good, "{users.name}", "{user.name}"), nil, []string{"steps[0].json.name: unknown value {user.name}; write {amount}, {users.name}, {users.password}, "}},
		{good, []string{"--method", "PUT"}, []string{"with --flow, write the target without a path"}},
		{good, []string{"--check", "status=200"}, []string{"with --flow, write the target without a path"}},
		{good, []string{"--http2", "--streams", "4"}, []string{"--streams has no effect with --flow"}},
	} {
		path := flowFile(t, test.flow)
		stdout, stderr, code := spillway(t, append([]string{"load", url, "--flow", path}, test.args...)...)
		for _, want := range test.want {
			if code != exit.Usage || stdout != "" || !strings.Contains(stderr, want) {
				t.Errorf("%v: exit %d, want %q in\n%s%s", test.args, code, want, stdout, stderr)
			}
		}
	}
	if len(s.seen) > 0 {
		t.Errorf("a wrong flow was sent: %v", s.seen)
	}
}

// TestLoadFlowUsers has too few users for their think times, which is the fault of
// the load and not of the shop. While other programs leave no CPU to the load, that is found first.
func TestLoadFlowUsers(t *testing.T) {
	t.Parallel()
	_, url := openShop(t)
	flow := strings.Replace(documentedFlow(t), "think: 1ms..3ms", "think: 300ms", 1)
	var step report.DocumentStep
	for range 10 {
		if step = flowLoad(t, exit.OK, flow, url, "--rate", "200", "-c", "2", "-d", "1s"); step.Validity != result.HostContended {
			break
		}
	}
	if step.Validity == result.HostContended {
		t.Logf("not judged, because ten loads were disturbed: %s", step.Reasons)
		return
	}
	if reasons := strings.Join(step.Reasons, "; "); step.Validity != result.GeneratorLimited || !strings.Contains(reasons, "none of the 2 users was free") ||
		strings.Contains(reasons, "the target did not keep up") {
		t.Errorf("%s: %s", step.Validity, reasons)
	}
}

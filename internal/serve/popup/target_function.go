package popup

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // for systems without time zones

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/conf"
)

// functionNames lists the functions for authors.
const functionNames = "date, duration, now, days_since, hour, weekday, version, lower, len and in_list"

// requestName is the variable that holds the Attributes. Expressions cannot name it.
const requestName = "the request"

// callName returns the name of a function for expr. It differs from that of an attribute.
func callName(name string) string { return name + "()" }

// functions returns the functions beside those of expr that expressions use: those that
// authors may call and those that guard calls. An argument that is missing is nil. Those that
// depend on more than arguments get the Attributes as the first one, which the types, for
// expr's checker, do not have.
func functions() conf.FunctionsTable {
	table := conf.FunctionsTable{}
	add := func(name string, call func(args []any) any, types ...reflect.Type) {
		table[name] = &builtin.Function{
			Name:  callName(name),
			Func:  func(args ...any) (any, error) { return call(args), nil },
			Types: types,
		}
	}
	add("now", func(args []any) any { return present(args[0].(*Attributes).now) }, reflect.TypeFor[func() time.Time]())
	add("days_since", daysSince, reflect.TypeFor[func(time.Time) int]())
	local := func(name string, of func(time.Time) int) {
		add(name, func(args []any) any {
			if now, ok := zoned(args); ok {
				return of(now)
			}
			return nil
		}, reflect.TypeFor[func() int](), reflect.TypeFor[func(string) int]())
	}
	local("hour", time.Time.Hour)
	local("weekday", func(now time.Time) int { return (int(now.Weekday())+6)%7 + 1 })
	add("version", func(args []any) any {
		if text, ok := args[0].(string); ok {
			if key, ok := versionKey(text); ok {
				return key
			}
		}
		return nil
	}, reflect.TypeFor[func(string) version]())
	add("lower", func(args []any) any {
		if text, ok := args[0].(string); ok {
			return strings.ToLower(text)
		}
		return nil
	}, reflect.TypeFor[func(string) string]())
	add("in_list", func(args []any) any {
		a := args[0].(*Attributes)
		return a.lists.Contains(args[1].(string), a.user)
	}, reflect.TypeFor[func(string) bool]())
	add("calculate", func(args []any) any { return calculate(args[0].(string), args[1], args[2]) })
	add("negate", func(args []any) any { return negate(args[0]) })
	return table
}

// present returns t; nil for the zero time.
func present(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// daysSince returns how many whole days of 24 hours have passed since a time; the days until
// a future time, rounded up, are negative.
func daysSince(args []any) any {
	now, then := args[0].(*Attributes).now, time.Time{}
	if t, ok := args[1].(time.Time); ok {
		then = t
	}
	if now.IsZero() || then.IsZero() {
		return nil
	}
	seconds := now.Unix() - then.Unix()
	if now.Nanosecond() < then.Nanosecond() {
		seconds--
	}
	const day = 24 * 60 * 60
	days := seconds / day
	if seconds%day < 0 {
		days--
	}
	return int(days)
}

// zoned returns the time in a zone, which is a location or the name of one.
func zoned(args []any) (time.Time, bool) {
	a := args[0].(*Attributes)
	if a.now.IsZero() {
		return time.Time{}, false
	}
	switch zone := args[1].(type) {
	case *time.Location:
		return a.now.In(zone), true
	case string:
		if location := a.schema.zones.find(zone); location != nil {
			return a.now.In(location), true
		}
	}
	return time.Time{}, false
}

// calls renames what is called, so that an attribute may have the name of a function.
type calls struct{}

// Visit renames one function.
func (calls) Visit(node *ast.Node) {
	if call, ok := (*node).(*ast.CallNode); ok {
		if callee, ok := call.Callee.(*ast.IdentifierNode); ok {
			callee.Value = callName(callee.Value)
		}
	}
}

// call checks a call of a function that is not one of expr's.
func (r *rules) call(node *ast.Node, n *ast.CallNode) error {
	callee, ok := n.Callee.(*ast.IdentifierNode)
	if !ok {
		return r.refuse(n, "a call of a method is not supported here")
	}
	var literal *ast.StringNode
	for i := range n.Arguments {
		if err := r.value(&n.Arguments[i]); err != nil {
			return err
		}
		literal, _ = n.Arguments[i].(*ast.StringNode)
	}
	switch callee.Value {
	case "now()", "days_since()":
		r.clock = true
		r.passRequest(n)
		return nil
	case "hour()", "weekday()":
		if len(n.Arguments) == 0 {
			n.Arguments = []ast.Node{constant(r.zone)}
		}
		if literal != nil {
			zone := r.schema.zones.find(literal.Value)
			if zone == nil {
				return r.refuse(literal, "unknown time zone %q", literal.Value)
			}
			replace(&n.Arguments[0], constant(zone))
		}
		r.clock = true
		r.passRequest(n)
		return nil
	case "version()":
		if literal == nil {
			return nil
		}
		key, ok := versionKey(literal.Value)
		if !ok {
			return r.refuse(literal, "%q is not a version such as 2.3.1", literal.Value)
		}
		replace(node, typed(&ast.ConstantNode{Value: key}, n.Type()))
		return nil
	case "lower()":
		if literal != nil {
			replace(node, typed(&ast.StringNode{Value: strings.ToLower(literal.Value)}, n.Type()))
		}
		return nil
	case "in_list()":
		if literal == nil {
			return r.refuse(n, "in_list takes the literal name of a list only")
		}
		if r.isList != nil && !r.isList(literal.Value) {
			return r.refuse(literal, "there is no list %q", literal.Value)
		}
		if !slices.Contains(r.lists, literal.Value) {
			r.lists = append(r.lists, literal.Value)
		}
		r.passRequest(n)
		return nil
	}
	return r.refuse(n, "%s is not supported here: the functions are %s", callee.Value, functionNames)
}

// passRequest makes the Attributes the first argument of a call.
func (r *rules) passRequest(n *ast.CallNode) {
	r.request = true
	n.Arguments = append([]ast.Node{&ast.IdentifierNode{Value: requestName}}, n.Arguments...)
}

const (
	zoneBytesMax = 64
	zonesMax     = 1000 // kept in memory; IANA has about 600
)

// IsZone reports whether name is a time zone of the IANA database, such as Europe/Oslo or UTC.
func IsZone(name string) bool { return loadZone(name) != nil }

// loadZone returns a time zone; nil if there is none with this name.
func loadZone(name string) *time.Location {
	if !isZoneName(name) {
		return nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil
	}
	return zone
}

// isZoneName reports whether a zone could have this name. The zone of this machine, and
// files beside the zones of its operating system, have none.
func isZoneName(name string) bool {
	if name == "" || len(name) > zoneBytesMax || name[0] < 'A' || name[0] > 'Z' || name == "Local" || strings.Contains(name, "//") {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_+-/", rune(c)) {
			return false
		}
	}
	return true
}

// zones loads each time zone once. Its methods may be called concurrently.
type zones struct {
	mu     sync.RWMutex
	loaded map[string]*time.Location
}

// find returns a time zone; nil if there is none with this name. It does not keep name.
func (z *zones) find(name string) *time.Location {
	z.mu.RLock()
	zone := z.loaded[name]
	z.mu.RUnlock()
	if zone != nil {
		return zone
	}
	name = strings.Clone(name)
	if zone = loadZone(name); zone != nil {
		z.mu.Lock()
		defer z.mu.Unlock()
		if z.loaded == nil {
			z.loaded = map[string]*time.Location{}
		}
		if len(z.loaded) < zonesMax {
			z.loaded[name] = zone
		}
	}
	return zone
}

package param

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPath(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, written string
		values        []string // of its parameters; nil: it does not match
	}{
		{"/orders/{id}", "/orders/7", []string{"7"}},
		{"/orders/{id}", "/orders/%37%2f+a", []string{"7/+a"}},
		{"/orders/{id}", "/orders/%zz", []string{"%zz"}},
		{"/orders/{id}", "/orders/{id}", []string{"{id}"}},
		{"/orders/{id}", "/orders/", nil},
		{"/orders/{id}", "/orders", nil},
		{"/orders/{id}", "/orders/7/", nil},
		{"/orders/{id}", "/orders/7/8", nil},
		{"/orders/{id}", "/orders/..", nil},
		{"/orders/{id}", "/orders/.", nil},
		{"/orders/{id}", "/orders/...", []string{"..."}},
		{"/orders/{id}", "/orders/7#a", nil},
		{"/orders/{id}", "/%6frders/7", nil},
		{"/orders/{id}", "//orders/7", nil},
		{"/orders/{id}", "/./orders/7", nil},
		{"/orders/{id}", "", nil},
		{"/{city}/orders/{id}/lines", "/%C3%A4/orders/7/lines", []string{"ä", "7"}},
		{"/{city}/orders/{id}/lines", "/a//7/lines", nil},
		{"/{a}", "/", nil},
		{"/a{b}/{c}", "/a{b}/d", []string{"d"}},
	} {
		p, written := NewPath(c.path), []byte(c.written)
		var values []string
		if p.Matches(written) {
			for _, name := range p.Names() {
				values = append(values, string(p.Value(written, name)))
			}
		}
		if diff := cmp.Diff(c.values, values); diff != "" {
			t.Errorf("%s at %s (-want +got):\n%s", c.written, c.path, diff)
		}
	}
	if p := NewPath("/orders/{id}"); p.Value([]byte("/orders/7"), "other") != nil || (*Path)(nil).Value(nil, "id") != nil {
		t.Error("a path has the value of a parameter that it lacks")
	}
}

// Literal segments win from the left.
func TestPathOrder(t *testing.T) {
	t.Parallel()
	want := []string{"/a/b/{z}", "/a/{y}/c", "/a/{y}/{z}", "/{x}/b/c", "/{x}/{y}/c"}
	paths := []*Path{NewPath(want[4]), NewPath(want[2]), NewPath(want[0]), NewPath(want[3]), NewPath(want[1])}
	slices.SortFunc(paths, (*Path).Compare)
	var got []string
	for _, p := range paths {
		got = append(got, p.Text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if a, b := NewPath("/a/{x}").Shape(), NewPath("/a/{y}").Shape(); a != b || a != "/a/{}" {
		t.Errorf("shapes %s and %s", a, b)
	}
}

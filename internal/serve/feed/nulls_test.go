package feed

import "testing"

// TestMatterWaitsForNobody: while NULLs are looked for, loops go on.
func TestMatterWaitsForNobody(t *testing.T) {
	t.Parallel()
	var n NullKeys
	last := Range{After: "a", Limit: 10}
	if n.Matter(last, 9) {
		t.Error("no column can be NULL")
	}
	n.Expect([]string{"k"})
	err := n.Look([]string{}, func([]string) (bool, error) {
		if !n.Matter(last, 9) || n.Matter(last, 10) || n.Matter(Range{Limit: 10}, 9) {
			t.Error("what matters are last pages")
		}
		return false, nil
	})
	if err != nil {
		t.Error(err)
	}
}

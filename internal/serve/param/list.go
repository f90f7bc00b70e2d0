package param

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/plans"
	"spillway/internal/serve/queue"
)

// list returns the argument of a list: the canonical texts of its values, sorted and without
// repetitions, each behind its length. In IN, neither order nor repetition matters.
func list(p Param, texts []string) (string, error) {
	if len(texts) > p.ListMax {
		return "", fmt.Errorf("%s has more than %d values", p.Name, p.ListMax)
	}
	values := make([]string, len(texts))
	for i, text := range texts {
		var err error
		if values[i], err = Parse(p, text); err != nil {
			return "", err
		}
	}
	slices.Sort(values)
	var b []byte
	for _, value := range slices.Compact(values) {
		b = queue.AppendBytes(b, value)
	}
	return string(b), nil
}

// Values returns the canonical texts of the values in the argument of a list.
func Values(arg string) ([]string, error) {
	var values []string
	d := queue.Decoder{Rest: []byte(arg)}
	for len(d.Rest) > 0 && !d.Bad {
		values = append(values, string(d.Bytes()))
	}
	if d.Bad || len(values) == 0 {
		return nil, errors.New("the argument is not a list")
	}
	return values, nil
}

// Expansion is a statement with lists for a database that has no arrays. Each list is
// replaced by several parameters of one value, so that IN (:ids) becomes IN (:ids_1, :ids_2).
// All lists of a statement have the same width, a power of two, so that there are few texts
// to prepare. A shorter list repeats its last value.
type Expansion struct {
	SQL    string
	Params []Param // each has one value
}

// Expand returns the expansions of a statement by their width: 1, 2, 4 and so on, up to the
// longest list. Without lists, the only one is the statement itself.
func Expand(sql string, d plans.Dialect, params []Param) ([]Expansion, error) {
	parsed, err := plans.ParseStatement(sql, d)
	if err != nil {
		return nil, err
	}
	if err := Match(parsed, params); err != nil {
		return nil, err
	}
	longest := 0
	for _, p := range params {
		longest = max(longest, p.ListMax)
	}
	if longest == 0 {
		return []Expansion{{SQL: sql, Params: params}}, nil
	}
	var all []Expansion
	for width := 1; ; width *= 2 {
		all = append(all, expand(parsed, params, width))
		if width >= longest {
			return all, nil
		}
	}
}

func expand(s plans.Statement, params []Param, width int) Expansion {
	separator := "_" // so that no new name is another parameter's
	for slices.ContainsFunc(params, func(p Param) bool { return strings.Contains(p.Name, separator) }) {
		separator += "_"
	}
	e := Expansion{}
	placeholders := make(map[string]string)
	for _, p := range params {
		if p.Filter {
			e.Params = append(e.Params, p)
			continue
		}
		if p.ListMax == 0 {
			placeholders[p.Name] = ":" + p.Name
			e.Params = append(e.Params, Param{Name: p.Name, Type: p.Type})
			continue
		}
		var names []string
		for i := range width {
			name := p.Name + separator + strconv.Itoa(i+1)
			names = append(names, ":"+name)
			e.Params = append(e.Params, Param{Name: name, Type: p.Type})
		}
		placeholders[p.Name] = strings.Join(names, ", ")
	}
	e.SQL = s.Render(func(name string) string { return placeholders[name] })
	return e
}

// ExpandArguments returns the position in Expand's result of the expansion for a statement's
// arguments, and the arguments for its parameters.
func ExpandArguments(params []Param, args []string) (expansion int, expanded []string, err error) {
	if len(args) != len(params) {
		return 0, nil, fmt.Errorf("%d arguments for %d parameters", len(args), len(params))
	}
	lists := make([][]string, len(params))
	longest := 0
	for i, p := range params {
		if p.ListMax == 0 {
			continue
		}
		if lists[i], err = Values(args[i]); err != nil {
			return 0, nil, fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		longest = max(longest, len(lists[i]))
	}
	if longest == 0 {
		return 0, args, nil
	}
	expansion = bits.Len(uint(longest - 1))
	for i, arg := range args {
		if lists[i] == nil {
			expanded = append(expanded, arg)
			continue
		}
		for j := range 1 << expansion {
			expanded = append(expanded, lists[i][min(j, len(lists[i])-1)])
		}
	}
	return expansion, expanded, nil
}

// AppendArgs appends an encoding of arguments. No two lists of arguments have the same one.
func AppendArgs(dst []byte, args []string) []byte {
	for _, arg := range args {
		dst = queue.AppendBytes(dst, arg)
	}
	return dst
}

// CloneArgs copies arguments and their texts, which may be in a request's buffer.
func CloneArgs(args []string) []string {
	own := make([]string, len(args))
	for i, arg := range args {
		own[i] = strings.Clone(arg)
	}
	return own
}

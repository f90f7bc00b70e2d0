package yaml

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Node is one value of a Document, for types that implement Decoder. Its methods report
// mistakes themselves.
type Node struct {
	document *Document
	path     string
	node     ast.Node
}

// Pair is one key of a mapping with its value.
type Pair struct {
	Key   string
	Value Node
}

// Path returns the path of n in its document.
func (n Node) Path() string { return n.path }

// Pairs returns the distinct keys of a mapping.
func (n Node) Pairs() []Pair {
	var pairs []Pair
	for _, p := range n.document.pairs(n.path, n.node) {
		pairs = append(pairs, Pair{p.key, Node{n.document, Join(n.path, Printable(p.key)), p.value}})
	}
	return pairs
}

// Items returns the elements of a list, or n itself if it is no list.
func (n Node) Items() []Node {
	sequence, isList := n.node.(*ast.SequenceNode)
	if !isList {
		return []Node{n}
	}
	items := make([]Node, len(sequence.Values))
	for i, item := range sequence.Values {
		items[i] = Node{n.document, Index(n.path, i), item}
	}
	return items
}

// Kind is the type of a Node.
type Kind uint8

// The kinds. Unsupported are YAML's own references, tags, .inf and .nan.
const (
	Unsupported Kind = iota
	Mapping
	List
	Text
	Number
	Bool
	Null
)

// Kind returns the type of n.
func (n Node) Kind() Kind {
	switch n.node.(type) {
	case ast.MapNode:
		return Mapping
	case *ast.SequenceNode:
		return List
	case *ast.StringNode, *ast.LiteralNode:
		return Text
	case *ast.IntegerNode, *ast.FloatNode:
		return Number
	case *ast.BoolNode:
		return Bool
	case nil, *ast.NullNode:
		return Null
	}
	return Unsupported
}

// IsScalar reports whether n is a single value.
func (n Node) IsScalar() bool {
	_, ok := scalarText(n.node)
	return ok
}

// Decode sets what v points to from n. It returns false if that cannot be done.
func (n Node) Decode(v any) bool {
	before := len(n.document.errs)
	n.document.decode(n.path, n.node, reflect.ValueOf(v).Elem())
	return len(n.document.errs) == before
}

// Literal returns a number, a text, true or false as text.
func (n Node) Literal() (string, bool) {
	text, _, ok := n.document.text(n.path, n.node, false)
	return text, ok
}

// Secret returns a text, or the content of the file that it names as file:PATH without the
// white space around it. No mistake that it reports quotes either.
func (n Node) Secret() (string, bool) {
	text, expanded, ok := n.document.text(n.path, n.node, true)
	if !ok || !expanded && !n.document.checkKind(n.path, n.node, "secret text", true) {
		return "", false
	}
	path, isFile := strings.CutPrefix(text, "file:")
	if !isFile {
		return text, true
	}
	content, err := n.document.options.ReadFile(path)
	if err != nil && n.document.options.Partial {
		n.document.setUnknown(n.path)
		return text, true
	}
	if err != nil {
		if pathError, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathError.Err // the path is in the file already, or came from the environment
		} else {
			err = errors.New("it cannot be opened")
		}
		n.Fail(fmt.Sprintf("cannot read the file that file: names: %v", err))
		return "", false
	}
	secret := strings.TrimSpace(string(content))
	if secret == "" {
		n.Fail("the file that file: names is empty")
	}
	return secret, secret != ""
}

// SecretSource returns a text as Secret does, but file:PATH as it is written, if the file can be read now.
func (n Node) SecretSource() (string, bool) {
	content, ok := n.Secret()
	if !ok {
		return "", false
	}
	if text, _, _ := n.document.text(n.path, n.node, true); strings.HasPrefix(text, "file:") {
		return text, true
	}
	return content, true
}

// Fail reports a mistake at n.
func (n Node) Fail(message string) { n.document.fail(n.node, n.path, message) }

// Reject reports that the value found at n breaks a rule. If the value is unknown, it does
// nothing.
func (n Node) Reject(rule, found string) {
	if !n.document.isUnknown(n.path) {
		n.Fail(rule + n.document.quote(n.document.Places[n.path], found))
	}
}

// scalarText returns a scalar as text: the content of quotes and block scalars, and
// numbers in their plain form.
func scalarText(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode:
		return fmt.Sprint(n.Value), true
	case *ast.FloatNode:
		return n.Token.Value, true
	case *ast.BoolNode:
		return fmt.Sprint(n.Value), true
	case *ast.InfinityNode, *ast.NanNode:
		return node.GetToken().Value, true
	}
	return "", false
}

// writtenText returns a scalar as text, numbers as they are written.
func writtenText(node ast.Node) (string, bool) {
	switch node.(type) {
	case *ast.IntegerNode, *ast.BoolNode:
		return node.GetToken().Value, true
	}
	return scalarText(node)
}

// textNode reports whether a scalar is text in YAML, and whether it is quoted.
func textNode(node ast.Node) (isText, quoted bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return true, n.Token.Type == token.SingleQuoteType || n.Token.Type == token.DoubleQuoteType
	case *ast.LiteralNode:
		return true, true
	}
	return false, false
}

// kindOf names what a node is, for messages.
func kindOf(node ast.Node) string {
	switch node.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.SequenceNode:
		return "a list"
	case ast.MapNode:
		return "a block of keys and values"
	}
	return "an unsupported value"
}

// errUnset is the end of the error about a variable that is not set.
var errUnset = errors.New("is not set")

// Expand replaces each ${NAME} by the variable of that name, and $${ by ${. It does not
// expand what it inserted. Its errors quote only the name of a variable.
func Expand(text string, env func(string) (string, bool)) (string, error) {
	var b strings.Builder
	for {
		i := strings.Index(text, "${")
		if i < 0 {
			b.WriteString(text)
			return b.String(), nil
		}
		if i > 0 && text[i-1] == '$' {
			b.WriteString(text[:i-1] + "${")
			text = text[i+2:]
			continue
		}
		b.WriteString(text[:i])
		name, rest, found := strings.Cut(text[i+2:], "}")
		if !found || !IsIdentifier(name) {
			return "", errors.New("${ begins the name of an environment variable, as ${NAME}; write $${ for ${ itself")
		}
		value, set := env(name)
		if !set {
			return "", fmt.Errorf("the environment variable %s %w", name, errUnset)
		}
		b.WriteString(value)
		text = rest
	}
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// IsIdentifier reports whether s is a letter or _, then letters, digits and _.
func IsIdentifier(s string) bool { return identifier.MatchString(s) }

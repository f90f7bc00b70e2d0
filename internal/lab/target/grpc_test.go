package target

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"spillway/internal/lab/result"
)

// shopDescriptor is the file descriptor set of
//
//	package shop.v1;
//	message Request { int64 id = 1; repeated string tags = 2; }
//	message Item { string name = 1; int64 price = 2; }
//	service Shop { rpc Get(Request) returns (Item); rpc List(Request) returns (stream Item); }
const shopDescriptor = `{"file":[{"name":"shop.proto","package":"shop.v1","syntax":"proto3",
	"messageType":[
		{"name":"Request","field":[
			{"name":"id","number":1,"label":"LABEL_OPTIONAL","type":"TYPE_INT64"},
			{"name":"tags","number":2,"label":"LABEL_REPEATED","type":"TYPE_STRING"}]},
		{"name":"Item","field":[
			{"name":"name","number":1,"label":"LABEL_OPTIONAL","type":"TYPE_STRING"},
			{"name":"price","number":2,"label":"LABEL_OPTIONAL","type":"TYPE_INT64"}]}],
	"service":[{"name":"Shop","method":[
		{"name":"Get","inputType":".shop.v1.Request","outputType":".shop.v1.Item"},
		{"name":"List","inputType":".shop.v1.Request","outputType":".shop.v1.Item","serverStreaming":true}]}]}]}`

func shopProto(t testing.TB) (path string) {
	t.Helper()
	var set descriptorpb.FileDescriptorSet
	if err := protojson.Unmarshal([]byte(shopDescriptor), &set); err != nil {
		t.Fatal(err)
	}
	text, err := proto.Marshal(&set)
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, "shop.pb", string(text))
}

// shop is a server of shop.v1.Shop/Get. The id selects how it answers.
func shop(t *testing.T, g *grpcMethod) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		frame, err := io.ReadAll(r.Body)
		request := dynamicpb.NewMessage(g.input)
		if err != nil || len(frame) < grpcHeaderBytes || int(binary.BigEndian.Uint32(frame[1:]))+grpcHeaderBytes != len(frame) || proto.Unmarshal(frame[grpcHeaderBytes:], request) != nil {
			t.Errorf("request %q: %v", frame, err)
		}
		if r.URL.Path != "/shop.v1.Shop/Get" || r.Header.Get("Content-Type") != "application/grpc" || r.Header.Get("Te") != "trailers" || r.Header.Get("Grpc-Timeout") == "" || r.Header.Get("X-Key") != "k" {
			t.Errorf("%s with %v", r.URL, r.Header)
		}
		id := request.Get(g.input.Fields().ByName("id")).Int()
		tags := request.Get(g.input.Fields().ByName("tags")).List()
		w.Header().Set("Content-Type", "application/grpc")
		switch id {
		case 5:
			w.Header().Set("Grpc-Status", "5") // without a body: trailers only
			w.Header().Set("Grpc-Message", "no such%20item")
			return
		case 6:
			return // neither status nor message
		case 8:
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, "no backend")
			return
		}
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		if id != 7 {
			item, err := protojson.Marshal(request)
			if err != nil || tags.Len() != 1 {
				t.Errorf("%s: %v", item, err)
			}
			answer := dynamicpb.NewMessage(g.output)
			answer.Set(g.output.Fields().ByName("name"), tags.Get(0))
			body, err := proto.Marshal(answer)
			if err != nil {
				t.Error(err)
			}
			w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...))
		}
		w.Header().Set("Grpc-Status", map[bool]string{true: "13", false: "0"}[id == 9])
		w.Header().Set("Grpc-Message", "late%0Afailure")
	}
}

func TestGRPC(t *testing.T) {
	path := shopProto(t)
	g, err := openGRPC("shop.v1.Shop/Get", path)
	if err != nil {
		t.Fatal(err)
	}
	plain, _ := serveHTTP2(t, false, shop(t, g))
	secure, _ := serveHTTP2(t, true, shop(t, g))
	for _, test := range []struct {
		id, check, want string
		class           result.ErrorClass
	}{
		{"1", "", "", 0},
		{"{random(1,1)}", "", "", 0},
		{"1", `body~={"name":"a b"}`, "", 0},
		{"1", "body~=other", "check failed", result.CheckError},
		{"5", "", "grpc-status 5 NOT_FOUND: no such item", result.StatusError},
		{"6", "", `malformed response: grpc-status ""`, result.Protocol},
		{"7", "", "malformed response: no message", result.Protocol},
		{"8", "", "status 503: no backend", result.StatusError},
		{"9", "", "grpc-status 13 INTERNAL: late failure", result.StatusError},
	} {
		for _, url := range []string{plain.URL, secure.URL} {
			var checks []string
			if test.check != "" {
				checks = append(checks, test.check)
			}
			c := Config{URL: url, Insecure: true, GRPC: "shop.v1.Shop/Get", Proto: path, Headers: []Header{{"X-Key", "k"}}, Streams: 2}
			c.Body = template(t, `{"id": `+test.id+`, "tags": ["a b"]}`)
			if c.Checks, err = ParseChecks(checks); err != nil {
				t.Fatal(err)
			}
			outcomes, _ := exchangeAll(t, open(t, c), 2)
			for _, o := range outcomes {
				switch {
				case test.want == "" && (o.Err != nil || o.Status != 200 || o.BytesReceived == 0):
					t.Errorf("id %s: outcome %+v", test.id, o)
				case test.want != "" && (o.Err == nil || Classify(o.Err) != test.class || !strings.HasPrefix(o.Err.Error(), test.want)):
					t.Errorf("id %s: error %v, want %s: %s", test.id, o.Err, test.class, test.want)
				}
			}
		}
	}
}

func TestGRPCErrors(t *testing.T) {
	path := shopProto(t)
	text := func(s string) Template { return template(t, s) }
	status, err := ParseChecks([]string{"status=200"})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		config Config
		want   string
	}{
		{Config{GRPC: "shop.v1.Shop/Get"}, "requires --proto FILE"},
		{Config{Proto: path}, "both are needed"},
		{Config{GRPC: "shop.v1.Shop/Get", Proto: "/no/such"}, "--proto: open /no/such"},
		{Config{GRPC: "shop.v1.Shop/Get", Proto: writeFile(t, "x.proto", `syntax = "proto3";`)}, "not a file descriptor set"},
		{Config{GRPC: "shop.v1.Shop/Set", Proto: path}, "it has shop.v1.Shop/Get, shop.v1.Shop/List"},
		{Config{GRPC: "shop.v1.Shop/List", Proto: path}, "only unary methods"},
		{Config{GRPC: "shop.v1.Shop/Get", Proto: path, Body: text(`{"idd": 1}`)}, "--body: {\"idd\": 1} is not a shop.v1.Request"},
		{Config{GRPC: "shop.v1.Shop/Get", Proto: path, Body: text(`{"id": "x{random(1,2)}"}`)}, "is not a shop.v1.Request"},
		{Config{GRPC: "shop.v1.Shop/Get", Proto: path, Method: "GET"}, "no method"},
		{Config{GRPC: "shop.v1.Shop/Get", Proto: path, Checks: status}, "grpc-status 0"},
		{Config{GRPC: "shop.v1.Shop/Get", Proto: path, Headers: []Header{{"content-type", "x"}}}, "--grpc sets it"},
	} {
		test.config.URL, test.config.Timeout = "http://127.0.0.1/", time.Minute
		if _, err := Open(t.Context(), test.config); err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}

// FuzzGRPCDecode decodes the body of an answer.
func FuzzGRPCDecode(f *testing.F) {
	g, err := openGRPC("shop.v1.Shop/Get", shopProto(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("\x00\x00\x00\x00\x03\x0a\x01a"))
	f.Add([]byte("\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		checks := Checks{contains: [][]byte{{}}}
		r := &http.Response{Trailer: http.Header{"Grpc-Status": {"0"}}}
		if err := g.judge(r, &checks, slices.Clone(body), int64(len(body))); err != nil && Classify(err) != result.Protocol {
			t.Fatalf("%q: %v", body, err)
		}
	})
}

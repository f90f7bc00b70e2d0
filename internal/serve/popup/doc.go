// Package popup decides which popup a user gets, stores what each user was shown and did,
// and ensures that concurrent requests of one user never get two popups.
//
// # Flow
//
//	popup.go      Ask reads the user's State, decides, and swaps the State in the Store
//	begin.go      Begin is Ask for event loops, which do not wait
//	decide.go     the decision and the State after it: pure functions
//	memory.go     a Store in this process; Redis is another one
//	event_log.go  records the event of a swap in the spool
//
// A swap succeeds only if the state still has the version that was read. A request that
// loses the race decides again. The event of a show, click or dismissal is durable before
// the answer. Click and Dismiss take the signed token of a show and go the same way.
//
//	schema, err := popup.NewSchema(attributes)
//	set, err := popup.NewSet(schema, campaigns)
//	p, err := popup.Open(popup.Config{Store: store, Signer: signer, Log: log}, set)
//	a := p.Attributes()
//	err = a.Add("country", "CN")
//	answer, err := p.Ask(ctx, popup.Key{User: "7", Placement: "home"}, a, now)
//	err = p.Click(ctx, answer.Token, "7", now)
//
// A Set is all campaigns, compiled. Campaigns replaces it when the database has changed.
//
// The document about popups has the rules, the expressions, and what happens while the store does not answer. Beyond that:
//
//   - All settings of campaigns are the current ones. If the set does not have the campaign that
//     was shown last, the wait at its last event applies.
//   - A time more than an hour in the future is not believed: a wait that began then is over, and
//     a campaign with Again that was finished then starts over.
//   - Everything else of expr is refused with its line and column: closures, loops, variables,
//     member access and concatenation. Evaluation does not fail. An attribute without a value is
//     nil, and so is a calculation without one. As a condition, nil is false.
//   - The event cannot be recorded: the state is put back, and the answer is the same. The event
//     may have been recorded all the same; a click that is sent again has the same Event.ID.
//   - UserRow fails, or a list has not been read yet: campaigns whose targets need it are
//     skipped and named in Answer.Detail. If nothing else is shown, the reason is Unavailable.
//     If a list does not exist, campaigns whose targets name it are for nobody.
//
// The package contains no SQL, no HTTP and no database client.
package popup

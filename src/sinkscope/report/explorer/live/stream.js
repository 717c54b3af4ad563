// A decode on the server as a stream of events; aborting it stops the decode.

export async function stream(asked, signal, take) {
  const answer = await fetch("run", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(asked),
    signal,
  });
  if (!answer.ok) throw new Error(await answer.text());
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) take(JSON.parse(part.slice("data: ".length)));
  }
}

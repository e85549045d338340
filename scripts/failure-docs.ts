import { CAUSES, type Reaction } from '../runtimes/llama-server/failure.ts'

const REACTIONS: Record<Reaction, string> = {
  retry: 'tries the same again immediately',
  evict: 'unloads idle models and tries again',
  other_build: 'tries the next best llama.cpp build',
  give_up: 'gives up; after repeated failures, waits before it tries again',
  ask_again: 'gives up before loading; the next request tries again immediately'
}

const INTRODUCTION = `# How engines fail

When an engine cannot load a model or ends during an answer, the error has a stable \`code\` and a stable \`cause\`. It also
has \`line\` (the decisive line of llama-server's log), \`exitCode\` and \`signal\`, and for memory \`stage\`, \`device\` and
\`wanted\` (bytes) if the log contains them. \`/v1\` returns only the code, \`/api\` returns everything. The table shows the
code of a failed load. An engine that ends during an answer returns \`engine_crashed\` with the same causes.
\`corral logs <model>\` and \`GET /api/logs/<model>\` show the engine's output.

The cause is found in this order: a signal from outside, then lines of the log, then the exit code. If several lines match,
the first independent cause wins over its consequences. Lines are ignored if llama-server later recovers from the problem,
or if they repeat the text of a request (in logs these start with \`│\`). Otherwise the cause is \`unknown\`.

| cause | code | message | what corral does |
|---|---|---|---|
`

export function renderFailureDocs(): { 'failures.md': string } {
  const rows = Object.entries(CAUSES).map(([cause, { code, sentence, reaction }]) => {
    return `| \`${cause}\` | \`${code}\` | ${sentence.replace(/\$\d/g, '…')} | ${REACTIONS[reaction]} |`
  })
  return { 'failures.md': `${INTRODUCTION}${rows.join('\n')}\n` }
}

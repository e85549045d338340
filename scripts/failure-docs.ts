import { CAUSES, type Reaction } from '../runtimes/llama-server/failure-causes.ts'

const REACTIONS: Record<Reaction, string> = {
  retry: 'tries the same again immediately',
  evict: 'unloads idle models and tries again',
  other_build: 'tries the next best llama.cpp build',
  give_up: 'gives up; after repeated failures, waits before it tries again',
  ask_again: 'gives up before loading; the next request tries again immediately'
}

const INTRODUCTION = `# How engines fail

When an engine cannot load a model, or ends while it answers, the error carries a stable \`code\` and, beside it, a stable
\`cause\`; further \`line\` (the line of llama-server's log that tells), \`exitCode\` and \`signal\`, and for memory \`stage\`,
\`device\` and \`wanted\` (bytes) where the log says so. \`/v1\` gives the code; \`/api\` gives all of it. The code below is that
of a load; an engine that ends in use gives \`engine_crashed\` with the same causes. \`corral logs <model>\` and
\`GET /api/logs/<model>\` show what the engine printed.

Lines count before exit codes, and a signal from outside before lines; the first line that is a cause of its own before
those that follow from it; nothing before a line that says that llama-server got over it or goes on, and nothing that
repeats the text of a request (in logs these lines begin with \`│\`). Where neither a line nor the exit tells, the cause is \`unknown\`.

| cause | code | what it says | what corral does |
|---|---|---|---|
`

export function renderFailureDocs(): { 'failures.md': string } {
  const rows = Object.entries(CAUSES).map(([cause, { code, sentence, reaction }]) => {
    return `| \`${cause}\` | \`${code}\` | ${sentence.replace(/\$\d/g, '…')} | ${REACTIONS[reaction]} |`
  })
  return { 'failures.md': `${INTRODUCTION}${rows.join('\n')}\n` }
}

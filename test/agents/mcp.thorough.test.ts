import { createServer } from 'node:http'
import { json } from 'node:stream/consumers'
import t from 'tap'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral } from '../support/corral.ts'
import { listen } from '../support/listen.ts'
import type { ModelRequest } from './scripted-model.ts'
import { sessionFolders, startSession } from './session.ts'
import { installAgents } from './sessions.ts'

t.setTimeout(600_000)

const MODEL = 'test/agent'
const PROMPT = 'Ask the local model for the capital of France.'
const AGENTS = ['claude-code', 'codex'] as const

/** A model that calls corral's tool `chat`, and then repeats what the tool has said. */
async function startModel(): Promise<string> {
  const server = createServer(async (request, response) => {
    if (request.method === 'GET') return void response.end('{"data":[]}')
    const { messages, tools = [] } = (await json(request)) as ModelRequest
    const tool = tools.map(({ function: { name } }) => name).find(name => /corral.*chat$/.test(name))
    const result = messages.findLast(({ role }) => role === 'tool')
    const delta =
      tool === undefined || result
        ? { content: `The tool says: ${JSON.stringify(result?.content ?? 'nothing')}` }
        : {
            tool_calls: [
              {
                index: 0,
                id: 'call_1',
                type: 'function',
                function: {
                  name: tool,
                  arguments: JSON.stringify({ model: DEMO, prompt: CAPITAL_QUESTION.content, temperature: 0 })
                }
              }
            ]
          }
    const finish_reason = 'tool_calls' in delta ? 'tool_calls' : 'stop'
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    for (const choice of [
      { delta, finish_reason: null },
      { delta: {}, finish_reason }
    ]) {
      response.write(`data: ${JSON.stringify({ choices: [{ index: 0, ...choice }] })}\n\n`)
    }
    response.end('data: [DONE]\n\n')
  })
  return `http://127.0.0.1:${await listen(t, server)}/v1`
}

const url = await startModel()
const capabilities = ['completion', 'tools']
const models = { [MODEL]: { model: 'agent', servers: [{ url }], context: 200_000, capabilities } }
const corral = await startCorral(t, { config: `remote: ${JSON.stringify({ models })}` })
installAgents(AGENTS)

for (const agent of AGENTS) {
  t.test(`${agent} calls a tool of corral`, async t => {
    const address = `${corral.url}/mcp`
    const config = JSON.stringify({ mcpServers: { corral: { type: 'http', url: address } } })
    // Otherwise it looks for the tool first.
    const settings = JSON.stringify({ env: { ENABLE_TOOL_SEARCH: 'false' } })
    const args = {
      'claude-code': [
        '-p',
        PROMPT,
        '--allowedTools',
        'mcp__corral__chat',
        '--strict-mcp-config',
        '--mcp-config',
        config,
        '--settings',
        settings
      ],
      codex: [
        'exec',
        '--skip-git-repo-check',
        '--sandbox',
        'danger-full-access',
        '-c',
        `mcp_servers.corral.url="${address}"`,
        PROMPT
      ]
    }
    const folders = sessionFolders()
    const place = {
      ...folders,
      url: corral.url,
      model: MODEL,
      context: 200_000,
      models: (await corral.json('/v1/models')).body
    }
    const session = startSession(t, agent, place, args[agent])
    t.equal(await session.ended, 0)
    t.match(session.output(), new RegExp(`The tool says: .*${CAPITAL_ANSWER}`, 's'), session.output().slice(-3000))
  })
}

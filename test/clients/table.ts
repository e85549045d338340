import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { elsewhere } from './running.ts'
import { FEATURES, LANGUAGES, type Language, type Outcome } from './trials.ts'

const PATH = join(packageRoot, 'docs', 'measurements', 'clients.md')

const INTRODUCTION = `# Clients that work

The vendors' own clients, installed from their registries, with a fresh corral, the demo model \`corral/tiny-chat\` and a
real llama-server. Only the address differs from normal use. The tests in \`test/clients\` try everything on each run and
write these tables (\`npm run docs:clients\`). The addresses are \`http://127.0.0.1:11435/v1\` for OpenAI clients,
\`http://127.0.0.1:11435\` for Anthropic clients, and \`http://127.0.0.1:11435/ollama\` for Ollama clients.

Some routes of Hugging Face's servers are not available: \`/generate\` and \`/generate_stream\` of Text Generation Inference,
\`/embed\` and \`/predict\` of Text Embeddings Inference. Their \`/rerank\` and \`/v1\` are.
`

/**
 * Compares the committed table of one language with the outcomes, or writes it if CORRAL_WRITE_DOCS is set. Does
 * nothing for existing servers, where fewer trials run.
 */
export function checkTable(t: Test, language: Language, outcomes: Outcome[]): void {
  if (elsewhere) return
  const sections = committed()
  const section = render(outcomes)
  if (process.env.CORRAL_WRITE_DOCS) {
    writeFileSync(
      PATH,
      [INTRODUCTION, ...LANGUAGES.map(of => `## ${of}\n\n${of === language ? section : (sections[of] ?? '')}`)].join(
        '\n'
      )
    )
    return
  }
  t.equal(
    sections[language],
    section,
    'docs/measurements/clients.md matches the outcomes; if not, run "npm run docs:clients"'
  )
}

/** Returns the sections of the committed document by language. */
function committed(): Record<string, string> {
  let text: string
  try {
    text = readFileSync(PATH, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return {}
  }
  return Object.fromEntries(
    text
      .split(/^## /m)
      .slice(1)
      .map(part => [part.slice(0, part.indexOf('\n')), `${part.slice(part.indexOf('\n')).trim()}\n`])
  )
}

/** The table of one language with all trials, client by client. */
function render(outcomes: Outcome[]): string {
  const rows = outcomes.map(({ client, version, language, feature, result, note }) => {
    const words = result === 'works' ? (note ? `works: ${note}` : 'works') : 'fails'
    return `| ${client} | ${version} | ${language} | ${FEATURES[feature]} | ${words.replaceAll('|', '\\|')} |`
  })
  return `${['| client | version | language | tried | result |', '|---|---|---|---|---|', ...rows].join('\n')}\n`
}

import type { Model } from '../../../core/contracts/catalog.ts'

/**
 * What a model was made with, as an Ollama Modelfile (https://docs.ollama.com/modelfile).
 * @param name that clients know the model by: what is made FROM it has all that it has
 */
export function modelfileText({ defaults, metadata }: Model, name: string): string {
  const { options = {}, system, messages = [], license } = defaults ?? {}
  const lines = ['# Modelfile written by corral', `FROM ${name}`]
  if (metadata.chatTemplate) lines.push(`TEMPLATE ${quoted(metadata.chatTemplate)}`)
  if (system) lines.push(`SYSTEM ${quoted(system)}`)
  for (const [option, value] of Object.entries(options)) {
    for (const entry of Array.isArray(value) ? value : [value]) {
      lines.push(`PARAMETER ${option} ${quoted(typeof entry === 'string' ? entry : JSON.stringify(entry))}`)
    }
  }
  if (license) lines.push(`LICENSE ${quoted(license)}`)
  for (const { role, content } of messages) lines.push(`MESSAGE ${role} ${quoted(content)}`)
  return `${lines.join('\n')}\n`
}

function quoted(text: string): string {
  return /\n|^\s|\s$|^"|^$/.test(text) ? `"""${text}"""` : text
}

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'

const DEMO_FILE = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')

/** Changes the bytes behind a metadata key of the demo model. The result still answers. */
function demoWith(key: string, change: (bytes: Buffer, keyAt: number, valueAt: number) => void): Buffer {
  const bytes = readFileSync(DEMO_FILE)
  const at = bytes.indexOf(key)
  if (at === -1) throw new Error(`The demo model has no ${key}.`)
  // The key's text is followed by the value's type, which takes four bytes.
  change(bytes, at, at + key.length + 4)
  return bytes
}

/** The demo model without a chat template: a base model. */
export const demoWithoutTemplate = () =>
  demoWith('tokenizer.chat_template', (bytes, keyAt) => void bytes.write('tokenizer.no__template_', keyAt))

/** The demo model with a trained context of this many tokens. */
export const demoWithContext = (tokens: number) =>
  demoWith('llama.context_length', (bytes, _, valueAt) => void bytes.writeUInt32LE(tokens, valueAt))

import { useState } from 'preact/hooks'
import { Dialog } from '../parts/controls.tsx'
import type { Chat } from '../state/conversation-tree.ts'
import { texts } from '../texts/texts.ts'

/** Options that have fields of their own, with what they may be. */
const OPTIONS = [
  { name: 'temperature', step: 'any', min: 0, max: 5 },
  { name: 'top_p', step: 'any', min: 0, max: 1 },
  { name: 'top_k', step: 1, min: 0, max: 1000 },
  { name: 'max_tokens', step: 1, min: -1, max: 1_000_000 },
  { name: 'seed', step: 1, min: -1, max: Number.MAX_SAFE_INTEGER },
  { name: 'num_ctx', step: 1, min: 16, max: 10_000_000 }
] as const

/** What a chat's requests have besides its messages. */
export type Settings = Pick<Chat, 'system' | 'schema' | 'tools' | 'options'>

export function ChatSettings(props: { settings: Settings; onSave: (settings: Settings) => void; onClose: () => void }) {
  const { settings: chat, onClose } = props
  const t = texts.value
  const known = new Set<string>(OPTIONS.map(({ name }) => name))
  const others = Object.fromEntries(Object.entries(chat.options ?? {}).filter(([name]) => !known.has(name)))
  const [fault, setFault] = useState('')
  const save = (form: FormData) => {
    const text = (name: string) => String(form.get(name) ?? '').trim()
    const options: Record<string, unknown> = {}
    for (const { name } of OPTIONS) if (text(name) !== '') options[name] = Number(text(name))
    const written = text('others')
    try {
      if (written) Object.assign(options, objectOf(written))
      if (text('schema')) objectOf(text('schema'))
      if (text('tools') && !Array.isArray(JSON.parse(text('tools')))) throw new SyntaxError('[ … ]')
    } catch (error) {
      setFault(t.notJson((error as Error).message))
      return
    }
    props.onSave({ system: text('system'), schema: text('schema'), tools: text('tools'), options })
    onClose()
  }
  return (
    <Dialog title={t.chatSettings} onClose={onClose}>
      <form
        class="form"
        onSubmit={event => {
          event.preventDefault()
          save(new FormData(event.currentTarget))
        }}
      >
        <label>
          {t.system}
          <textarea class="field" name="system" rows={3} defaultValue={chat.system} />
        </label>
        <div class="option-fields">
          {OPTIONS.map(({ name, ...bounds }) => (
            <label key={name}>
              {name}
              <input
                class="field"
                type="number"
                name={name}
                {...bounds}
                placeholder={t.serverDefault}
                defaultValue={String(chat.options?.[name] ?? '')}
              />
            </label>
          ))}
        </div>
        <details open={Boolean(chat.schema || chat.tools || Object.keys(others).length > 0)}>
          <summary>{t.forProgrammers}</summary>
          <div class="form">
            <label>
              {t.otherOptions}
              <textarea
                class="field mono"
                name="others"
                rows={2}
                placeholder='{"min_p": 0.05}'
                defaultValue={Object.keys(others).length > 0 ? JSON.stringify(others) : ''}
              />
            </label>
            <label>
              {t.answerSchema}
              <textarea
                class="field mono"
                name="schema"
                rows={4}
                placeholder='{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
                defaultValue={chat.schema}
              />
            </label>
            <label>
              {t.tools}
              <textarea
                class="field mono"
                name="tools"
                rows={4}
                placeholder='[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]'
                defaultValue={chat.tools}
              />
            </label>
          </div>
        </details>
        {fault && (
          <p class="is-error" role="alert">
            {fault}
          </p>
        )}
        <footer class="dialog-foot">
          <button type="submit" class="button is-main">
            {t.save}
          </button>
        </footer>
      </form>
    </Dialog>
  )
}

/** @throws SyntaxError for what is no JSON object */
function objectOf(text: string): object {
  const value: unknown = JSON.parse(text)
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new SyntaxError('{ … }')
  return value
}

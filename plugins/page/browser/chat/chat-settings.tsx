import { useRef, useState } from 'preact/hooks'
import { Dialog, IconButton } from '../parts/controls.tsx'
import { deletePreset, type Preset, presets, type Settings, takePresets } from '../state/presets.ts'
import { fill, texts } from '../texts/texts.ts'

/** Options with their own fields and allowed values. */
const OPTIONS = [
  { name: 'temperature', step: 'any', min: 0, max: 5 },
  { name: 'top_p', step: 'any', min: 0, max: 1 },
  { name: 'top_k', step: 1, min: 0, max: 1000 },
  { name: 'max_tokens', step: 1, min: -1, max: 1_000_000 },
  { name: 'seed', step: 1, min: -1, max: Number.MAX_SAFE_INTEGER },
  { name: 'num_ctx', step: 1, min: 16, max: 10_000_000 }
] as const

export function ChatSettings(props: { settings: Settings; onSave: (settings: Settings) => void; onClose: () => void }) {
  const { onClose } = props
  const t = texts.value
  const [chat, setChat] = useState(props.settings)
  /** The preset shown in the fields, and how often one was applied. */
  const [preset, setPreset] = useState({ name: '', count: 0 })
  const known = new Set<string>(OPTIONS.map(({ name }) => name))
  const others = Object.fromEntries(Object.entries(chat.options ?? {}).filter(([name]) => !known.has(name)))
  const [fault, setFault] = useState('')
  const form = useRef<HTMLFormElement>(null)
  /** The settings in the fields. Returns undefined after reporting an invalid field. */
  const settingsOf = (form: FormData): Settings | undefined => {
    const text = (name: string) => String(form.get(name) ?? '').trim()
    const options: Record<string, unknown> = {}
    for (const { name } of OPTIONS) if (text(name) !== '') options[name] = Number(text(name))
    const written = text('others')
    try {
      if (written) Object.assign(options, objectOf(written))
      if (text('schema')) objectOf(text('schema'))
      if (text('tools') && !Array.isArray(JSON.parse(text('tools')))) throw new SyntaxError('[ … ]')
    } catch (error) {
      setFault(fill(t.notJson, { reason: (error as Error).message }))
      return undefined
    }
    setFault('')
    return { system: text('system'), schema: text('schema'), tools: text('tools'), options }
  }
  return (
    <Dialog title={t.chatSettings} onClose={onClose}>
      <Presets
        name={preset.name}
        onChoose={chosen => {
          setChat(chosen)
          setPreset({ name: chosen.name, count: preset.count + 1 })
        }}
        settings={() => settingsOf(new FormData(form.current!))}
        onSaved={name => setPreset({ ...preset, name })}
      />
      <form
        class="form"
        key={preset.count}
        ref={form}
        onSubmit={event => {
          event.preventDefault()
          const settings = settingsOf(new FormData(event.currentTarget))
          if (!settings) return
          props.onSave(settings)
          onClose()
        }}
      >
        <label>
          {t.system}
          <textarea class="field" name="system" rows={3} defaultValue={chat.system} />
        </label>
        <div class="option-fields">
          {OPTIONS.map(({ name, ...bounds }) => (
            <label key={name}>
              <span lang="en">{name}</span>
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

/** Applies a preset to the fields, or saves the fields as a preset. */
function Presets(props: {
  /** The preset that was applied or saved last. */
  name: string
  onChoose: (preset: Preset) => void
  /** The settings in the fields. */
  settings: () => Settings | undefined
  onSaved: (name: string) => void
}) {
  const t = texts.value
  const [isNaming, setNaming] = useState(false)
  if (isNaming) {
    return (
      <form
        class="row"
        onSubmit={event => {
          event.preventDefault()
          const name = String(new FormData(event.currentTarget).get('name')).trim()
          const settings = props.settings()
          if (!settings || name === '') return
          takePresets([{ ...settings, name }])
          props.onSaved(name)
          setNaming(false)
        }}
      >
        <input
          class="field grow"
          name="name"
          required
          maxLength={80}
          aria-label={t.presetName}
          placeholder={t.presetName}
          defaultValue={props.name}
          ref={field => field?.focus()}
        />
        <button type="submit" class="button">
          {t.save}
        </button>
        <IconButton icon="close" label={t.cancel} onClick={() => setNaming(false)} />
      </form>
    )
  }
  return (
    <div class="row">
      {presets.value.length > 0 && (
        <select
          class="field grow"
          aria-label={t.preset}
          value={props.name}
          onChange={event => {
            const name = event.currentTarget.value
            props.onChoose(presets.value.find(preset => preset.name === name) ?? { name: '' })
          }}
        >
          <option value="">{t.noPreset}</option>
          {presets.value.map(({ name }) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
      )}
      <button type="button" class="button" onClick={() => setNaming(true)}>
        {t.savePreset}
      </button>
      {presets.value.some(({ name }) => name === props.name) && (
        <IconButton
          icon="trash"
          label={fill(t.deletePreset, { name: props.name })}
          onClick={() => {
            deletePreset(props.name)
            props.onSaved('')
          }}
        />
      )}
    </div>
  )
}

/** @throws SyntaxError unless the text is a JSON object */
function objectOf(text: string): object {
  const value: unknown = JSON.parse(text)
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new SyntaxError('{ … }')
  return value
}

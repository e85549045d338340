import { useRef, useState } from 'preact/hooks'
import { IconButton } from '../parts/controls.tsx'
import { Actions, Button, type FieldText, Form, fieldText, parseObject, TextField } from '../parts/forms.tsx'
import { Fault } from '../parts/layout.tsx'
import { optionsIn, SettingFields, type SettingName, splitOptions } from '../parts/setting-fields.tsx'
import type { Settings } from '../state/chat-format.ts'
import { deletePreset, type Preset, presets, takePresets } from '../state/presets.ts'
import { fill, texts } from '../texts/texts.ts'

/** Options with their own fields. */
const NAMES: readonly SettingName[] = ['temperature', 'top_p', 'top_k', 'max_tokens', 'seed', 'num_ctx']

/** Fields of JSON, each with an example. */
const JSON_FIELDS = [
  { name: 'others', rows: 2, label: 'otherOptions', example: '{"min_p": 0.05}' },
  {
    name: 'schema',
    rows: 4,
    label: 'answerSchema',
    example: '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
  },
  {
    name: 'tools',
    rows: 4,
    label: 'tools',
    example:
      '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]'
  }
] as const

export function ChatSettings(props: {
  model: string
  settings: Settings
  onSave: (settings: Settings) => unknown
  onDone: () => void
}) {
  const t = texts.value
  const [chat, setChat] = useState(props.settings)
  /** The preset shown in the fields, and how often one was applied. */
  const [preset, setPreset] = useState({ name: '', count: 0 })
  const { schema = '', tools = '', options = {} } = chat
  const [ownOptions, otherOptions] = splitOptions(NAMES, options)
  const others = Object.keys(otherOptions).length > 0 ? JSON.stringify(otherOptions) : ''
  const written = { others, schema, tools }
  const [fault, setFault] = useState({ name: '', text: '' })
  const form = useRef<HTMLFormElement>(null)
  /** The settings in the fields. Returns undefined after reporting an invalid field. */
  const settingsIn = (text: FieldText): Settings | undefined => {
    const [system, schema, tools] = [text('system'), text('schema'), text('tools')]
    let name = 'others'
    try {
      const options = { ...optionsIn(NAMES, text), ...parseObject(text(name)) }
      name = 'schema'
      parseObject(schema)
      name = 'tools'
      if (tools && !Array.isArray(JSON.parse(tools))) throw new SyntaxError('[ … ]')
      setFault({ name: '', text: '' })
      const { mcp, effort } = chat
      return { ...(mcp && { mcp }), ...(effort && { effort }), system, schema, tools, options }
    } catch (error) {
      setFault({ name, text: fill(t.notJson, { reason: (error as Error).message }) })
      return undefined
    }
  }
  return (
    <>
      <Presets
        name={preset.name}
        onChoose={chosen => {
          setChat(chosen)
          setPreset({ name: chosen.name, count: preset.count + 1 })
        }}
        settings={() => settingsIn(fieldText(new FormData(form.current!)))}
        onSaved={name => setPreset({ ...preset, name })}
      />
      <Form
        class="form"
        key={preset.count}
        element={form}
        onSubmit={text => {
          const settings = settingsIn(text)
          if (!settings) return
          void props.onSave(settings)
          props.onDone()
        }}
      >
        <TextField label={t.system} name="system" rows={3} defaultValue={chat.system} />
        <SettingFields model={props.model} names={NAMES} own={ownOptions} origin="chat" />
        <details open={Object.values(written).some(Boolean)}>
          <summary>{t.forProgrammers}</summary>
          <div class="form">
            {JSON_FIELDS.map(({ name, rows, label, example }) => (
              <div key={name}>
                <TextField
                  label={t[label]}
                  class="field mono"
                  name={name}
                  rows={rows}
                  placeholder={example}
                  defaultValue={written[name]}
                />
                {fault.name === name && <Fault text={fault.text} isAnnounced />}
              </div>
            ))}
          </div>
        </details>
        <Actions>
          <Button kind="main" type="submit" text={t.save} />
        </Actions>
      </Form>
    </>
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
      <Form
        class="row"
        onSubmit={text => {
          const name = text('name')
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
        <Button type="submit" text={t.save} />
        <IconButton icon="close" label={t.cancel} onClick={() => setNaming(false)} />
      </Form>
    )
  }
  const remove = () => {
    deletePreset(props.name)
    props.onSaved('')
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
      <Button onClick={() => setNaming(true)} text={t.savePreset} />
      {presets.value.some(({ name }) => name === props.name) && (
        <IconButton icon="trash" label={fill(t.deletePreset, { name: props.name })} onClick={remove} />
      )}
    </div>
  )
}

import { useState } from 'preact/hooks'
import { IconButton } from '../parts/controls.tsx'
import { Actions, Button, Field, Form, TextField } from '../parts/forms.tsx'
import { deletePrompt, prompts, type SavedPrompt, takePrompts } from '../state/presets.ts'
import { fill, texts } from '../texts/texts.ts'

const MAX_LENGTH = 100_000

/** Shows, edits and deletes saved prompts. */
export function Prompts() {
  const t = texts.value
  const [edited, setEdited] = useState<SavedPrompt | undefined>(undefined)
  if (edited) {
    const name = { name: 'name', required: true, maxLength: 80, pattern: '.*\\S.*', defaultValue: edited.name }
    const text = { name: 'text', required: true, maxLength: MAX_LENGTH, rows: 6, defaultValue: edited.text }
    return (
      <Form
        class="form"
        onSubmit={field => {
          if (edited.name !== field('name')) deletePrompt(edited.name)
          takePrompts([{ name: field('name'), text: field('text') }])
          setEdited(undefined)
        }}
      >
        <Field label={t.promptName} {...name} />
        <TextField label={t.promptText} {...text} />
        <p class="quiet">{t.promptHint}</p>
        <Actions>
          <Button onClick={() => setEdited(undefined)} text={t.cancel} />
          <Button kind="main" type="submit" text={t.save} />
        </Actions>
      </Form>
    )
  }
  return (
    <>
      {prompts.value.length === 0 && <p class="quiet">{t.nothingYet}</p>}
      <ul class="plain-list">
        {prompts.value.map(({ name, text }) => (
          <li key={name} class="row">
            <span class="grow">{name}</span>
            <IconButton icon="edit" label={fill(t.editPrompt, { name })} onClick={() => setEdited({ name, text })} />
            <IconButton icon="trash" label={fill(t.deletePrompt, { name })} onClick={() => deletePrompt(name)} />
          </li>
        ))}
      </ul>
      <Actions>
        <Button icon="plus" onClick={() => setEdited({ name: '', text: '' })} text={t.newPrompt} />
      </Actions>
    </>
  )
}

/** A value that a prompt asks for. */
export interface PromptField {
  name: string
  description?: string
  required?: boolean
  value?: string
}

/** Asks for the values of a prompt. */
export function FillForm(props: { fields: readonly PromptField[]; onFilled: (values: FormData) => unknown }) {
  return (
    <Form class="form" onSubmit={(_, values) => props.onFilled(values)}>
      {props.fields.map(({ name, description = '', required = false, value }, index) => (
        <TextField
          key={name}
          label={[`${name} `, <small key="about">{description}</small>]}
          name={name}
          rows={1}
          required={required}
          defaultValue={value}
          autofocus={index === 0}
        />
      ))}
      <Actions>
        <Button kind="main" type="submit" text={texts.value.insert} />
      </Actions>
    </Form>
  )
}

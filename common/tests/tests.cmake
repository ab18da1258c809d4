# The tests of every part, for ctest.
foreach(part layer_norm fused_layer_norm)
  add_executable(${part}_test reference_cpu/tests/${part}_test.cpp)
  target_link_libraries(${part}_test PRIVATE reference_cpu)
  add_test(NAME reference_${part} COMMAND ${part}_test)
endforeach()

if(BACKEND STREQUAL "cpu")
  set_source_files_properties(common/tests/bad_launch.cu PROPERTIES LANGUAGE CXX
                                                                    COMPILE_OPTIONS "-xc++")
  target_compile_definitions(chapters_test PRIVATE LNC_CPU_BACKEND)
  target_compile_definitions(common PUBLIC LNC_CPU_BACKEND)

  add_executable(simt_machine_test common/simt/tests/machine_test.cpp common/simt/machine.cpp)
  target_link_libraries(simt_machine_test PRIVATE project_options)
  add_test(NAME simt_machine COMMAND simt_machine_test)
  add_executable(simt_hopper_test common/simt/tests/hopper_test.cpp common/simt/machine.cpp)
  target_link_libraries(simt_hopper_test PRIVATE project_options)
  add_test(NAME simt_hopper COMMAND simt_hopper_test)

  add_executable(library_test common/tests/library_test.cpp)
  target_link_libraries(library_test PRIVATE lnc reference_cpu)
  add_test(NAME library COMMAND library_test)

  # Out-of-bounds accesses of a kernel are the sanitizers' to see.
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_executable(simt_memory_test common/simt/tests/memory_test.cpp common/simt/machine.cpp)
  target_link_libraries(simt_memory_test PRIVATE project_options)
  target_compile_options(simt_memory_test PRIVATE ${sanitizers})
  target_link_options(simt_memory_test PRIVATE ${sanitizers})
  add_test(NAME simt_memory COMMAND simt_memory_test)
endif()

target_sources(chapters_test PRIVATE common/tests/bad_launch.cu)
add_test(NAME chapters COMMAND chapters_test)
# More than one block at a time even on one core, so that a lost atomic shows.
set_tests_properties(chapters PROPERTIES ENVIRONMENT "OMP_NUM_THREADS=$<IF:$<STREQUAL:${BACKEND},cpu>,4,16>")

find_package(Python3 REQUIRED COMPONENTS Interpreter)
function(add_python_test name)
  add_test(NAME ${name} COMMAND ${Python3_EXECUTABLE} -B ${ARGN})
  set_tests_properties(${name} PROPERTIES WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
                                          SKIP_RETURN_CODE 77)
endfunction()
add_python_test(command_line common/tests/command_line_test.py $<TARGET_FILE_DIR:chapters>)
add_python_test(chapter_files common/tests/chapter_files_test.py)
add_python_test(tables notebooks/tests/tables_test.py)
add_python_test(book notebooks/tests/book_test.py)
add_python_test(plots notebooks/tests/plots_test.py)
add_python_test(notebooks notebooks/tests/notebooks_test.py)
add_python_test(peers notebooks/tests/peers_test.py)
add_python_test(peers_torch notebooks/tests/peers_torch_test.py $<TARGET_FILE:lnc>)
add_python_test(variance notebooks/tests/variance_test.py $<TARGET_FILE_DIR:chapters>)
add_python_test(setup -m unittest discover -s common/setup/tests)
if(BACKEND STREQUAL "cpu")
  add_python_test(lab notebooks/tests/lab_test.py)
endif()
if(BACKEND STREQUAL "cuda")
  add_python_test(cycles common/tests/cycles_test.py $<TARGET_FILE_DIR:chapters>)
  add_executable(philox_words common/tests/philox_words.cpp)
  target_link_libraries(philox_words PRIVATE project_options)
  add_python_test(pytorch common/tests/pytorch_test.py $<TARGET_FILE_DIR:chapters>)
  set_tests_properties(cycles PROPERTIES RUN_SERIAL TRUE)  # the GPU to itself
endif()
